"""Kernels: what runs an op on a rank's arrays, chosen at run time by name."""

from executor.runtime.kernels.base import Kernels as Kernels
from executor.runtime.kernels.base import open_kernels as open_kernels
