"""Weights in tiles, and the loops that multiply them with the rows of a pass."""
