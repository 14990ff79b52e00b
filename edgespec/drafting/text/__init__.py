"""Drafters that find where text repeats itself."""
