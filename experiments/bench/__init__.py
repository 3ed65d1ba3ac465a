"""Benchmarks: ours against others, in one run, with every raw sample."""
