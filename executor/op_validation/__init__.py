"""Trial: what an op says of itself, tried out on arrays: its signatures, its gradient, and what it does not list."""
