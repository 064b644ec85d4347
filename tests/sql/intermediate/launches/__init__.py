"""Tests of sql/intermediate/launches."""
