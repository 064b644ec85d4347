"""Checks of the marts, and the verdict on a run."""
