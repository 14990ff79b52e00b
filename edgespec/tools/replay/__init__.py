"""Replaying logs: what each drafter, and all of them together, would have done for them."""
