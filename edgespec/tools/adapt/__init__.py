"""Adapters: matrices that let an early exit say more often what the whole model would say."""
