"""Speculative sampling by rejection: the target's distribution, not the same text."""
