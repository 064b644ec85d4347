"""Tests of sql/intermediate."""
