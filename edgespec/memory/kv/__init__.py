"""Keys and values: the arena they lie in, and the files they are kept in."""
