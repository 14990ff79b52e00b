"""Memory: the budget, what a session costs, the plan that fits, and what was really used."""
