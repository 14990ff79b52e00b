"""The chat at a terminal: what is typed, what is shown, what is kept."""
