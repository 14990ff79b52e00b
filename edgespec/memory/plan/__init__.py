"""What a session costs, and the plan that fits the budget: arithmetic, nothing is allocated."""
