"""Tests of sql/questions."""
