"""Files in, answers out."""
