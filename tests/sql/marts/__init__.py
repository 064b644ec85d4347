"""Tests of sql/marts."""
