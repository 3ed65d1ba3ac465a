"""Tests of `executor.runtime.kernels.gpu`."""
