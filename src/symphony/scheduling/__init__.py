"""The scheduler's state, its feasibility rules, its event handlers, and the policy protocol."""
