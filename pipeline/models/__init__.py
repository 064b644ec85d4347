"""The engine that runs sql/ over one run and puts its marts in place."""
