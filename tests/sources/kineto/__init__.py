"""Tests of the Kineto reader."""
