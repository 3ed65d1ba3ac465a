"""Kernels: seconds of products, attention, experts and collectives on a device, fitted to microbenchmarks."""
