"""Tests of sources/latency."""
