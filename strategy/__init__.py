"""strategy: words, search, plan, program and actor protocol; no I/O beyond files."""
