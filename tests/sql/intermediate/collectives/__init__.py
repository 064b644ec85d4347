"""Tests of sql/intermediate/collectives."""
