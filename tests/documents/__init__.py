"""Tests of the READMEs."""
