"""Published microbenchmarks of kernels: what they measured, what is fitted to them, and how far that is off."""
