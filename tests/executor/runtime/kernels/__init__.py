"""Tests of `executor.runtime.kernels`."""
