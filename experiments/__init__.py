"""experiments: the command line, the refine loop, the run store, figures and notebooks."""
