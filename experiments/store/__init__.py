"""The run store: a folder per run, a table of all, and the results of experiments read back from it."""
