"""Fuzzing of the readers: damaged traces are refused by name or landed whole, and nothing else ever
happens."""
