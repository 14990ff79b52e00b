"""Drafters: objects that guess what the target will say next."""
