"""layout: where and how every tensor of a graph lives, in which order a stage runs, and what that costs."""
