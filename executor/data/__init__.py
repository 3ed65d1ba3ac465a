"""data: what a model is trained on: text from files, and batches drawn from a seed."""
