"""Heads that draft for a trained model, the trunk: an EAGLE-3 head, a next-token block (MTP)."""
