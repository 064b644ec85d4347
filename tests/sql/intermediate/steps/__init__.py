"""Tests of sql/intermediate/steps."""
