"""Drafters that look continuations up in counted tables."""
