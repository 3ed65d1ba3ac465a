"""ilp: problems of one choice per node, their solver, certificates and baselines."""
