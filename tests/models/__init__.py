"""Tests of the SQL models: rows in, rows out."""
