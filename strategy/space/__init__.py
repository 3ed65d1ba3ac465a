"""space: what may be chosen (degrees, micro-batches, a signature for every op), and the integer problem of choosing."""
