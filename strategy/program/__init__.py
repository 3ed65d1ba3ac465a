"""program: actors, registers and channels per rank, the protocol that drives them, and their timelines."""
