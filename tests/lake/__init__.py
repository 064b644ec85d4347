"""Tests of lake."""
