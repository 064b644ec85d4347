"""Tests of analyses/audit."""
