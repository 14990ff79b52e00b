"""Model files and names: reading, validating, tokenizing, templates."""
