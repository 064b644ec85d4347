"""Readers: bytes of a trace to typed rows that say what the file says, and nothing derived."""
