"""search: which degrees of parallelism, which micro-batches, which signature for every op."""
