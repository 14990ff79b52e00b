"""Layers with a state of fixed size: gated delta nets, Mamba-2, short convolutions."""
