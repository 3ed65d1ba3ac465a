"""passes: from a model's forward graph to the graph of one training step."""
