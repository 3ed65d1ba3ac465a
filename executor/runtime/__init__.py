"""runtime: one rank that runs its actors: registers, kernels, transports and the worker."""
