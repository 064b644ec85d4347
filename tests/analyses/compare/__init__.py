"""Tests of analyses/compare."""
