"""Certificates: a solver's bound as a derivation that is checked without the solver."""
