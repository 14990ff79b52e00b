"""The draft market: many proposals become one tree, likeliest paths first."""
