"""Tests of sql/staging."""
