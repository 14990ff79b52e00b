"""How keys and values are stored: f16, int8 and q4."""
