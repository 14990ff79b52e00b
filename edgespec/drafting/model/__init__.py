"""Drafters that ask a model: the target's first layers, or a smaller one."""
