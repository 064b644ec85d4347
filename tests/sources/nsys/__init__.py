"""Tests of the nsys reader."""
