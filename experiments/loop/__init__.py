"""The refine loop: search, run, correct the time model, search again."""
