"""The machine that we run on: what it can do, of what nodes its jobs consist, whether ops hold on it."""
