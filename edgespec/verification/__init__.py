"""Drawing the target's tokens and comparing drafts with them."""
