"""Sequences of models with recurrent layers: their states, and what waits to go into them."""
