"""Tests of analyses/whatif."""
