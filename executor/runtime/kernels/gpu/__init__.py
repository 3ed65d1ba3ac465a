"""Our own CUDA kernels: sources, the compiler that makes cubins of them, and how an op's act becomes launches."""
