"""sbp: what a tensor is before it exists, on which devices it is, and how it lies there."""
