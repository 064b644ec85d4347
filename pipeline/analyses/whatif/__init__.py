"""Predictions from measured steps."""
