"""Tests of sql/intermediate/time."""
