"""The planner: memory, time and search over training strategies."""
