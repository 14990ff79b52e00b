"""Mixtures of experts: which rows go to which, and matrices that are read once for all of them."""
