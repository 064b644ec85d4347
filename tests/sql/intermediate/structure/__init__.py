"""Tests of sql/intermediate/structure."""
