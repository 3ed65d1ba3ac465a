"""What the C library calls: memory by its address, results as whole numbers."""

from __future__ import annotations

import ctypes

import numpy as np

import executor.exchange.horovod as hvd
from executor.runtime.transport.base import HostArray

rank, size, local_rank, local_size = hvd.rank, hvd.size, hvd.local_rank, hvd.local_size


def init() -> int:
    """Open the exchange."""
    hvd.init()
    return 0


def shutdown() -> int:
    """Close it."""
    hvd.shutdown()
    return 0


def all_reduce(name: str, address: int, count: int, mean: int) -> int:
    """Combine floats in place."""
    hvd.allreduce_(_floats(address, count), name, hvd.Average if mean else hvd.Sum)
    return 0


def broadcast(name: str, address: int, count: int, root: int) -> int:
    """Fill floats with the root's."""
    hvd.broadcast_(_floats(address, count), root, name)
    return 0


def _floats(address: int, count: int) -> HostArray:
    if count == 0:
        return np.zeros(0, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))
