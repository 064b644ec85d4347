"""Collectives of a step compared with what the layout requires."""
