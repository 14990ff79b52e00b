"""From a model's name and a budget to an open engine."""
