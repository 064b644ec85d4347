"""Rows in, rows out for each SQL model."""
