"""candidate: one configuration of degrees, solved, fitted to the memory and simulated."""
