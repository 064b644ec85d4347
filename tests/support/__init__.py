"""Helpers of the tests: builders of traces, homes, tables."""
