"""Weights that are read from disk while passes need them."""
