"""Attention of tree nodes over the cached prefix and their own ancestors."""
