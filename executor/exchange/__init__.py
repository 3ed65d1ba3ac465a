"""exchange: gradients of a user's own training loop, agreed upon and summed behind its back."""
