"""The home on disk: what is in it, how it is read, and how it is kept safe."""
