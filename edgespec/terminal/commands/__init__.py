"""Commands that come in groups: arguments in, a call, text out."""
