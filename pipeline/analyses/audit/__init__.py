"""Collectives of a step against what the layout asks for."""
