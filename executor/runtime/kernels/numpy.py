"""NumPy on one core.

One BLAS thread per rank, always: ranks share the cores, and BLAS threads that spin for one another on shared cores
are several times slower than one thread. OpenBLAS and MKL read their thread counts when NumPy is imported, so
whoever starts the ranks sets OPENBLAS_NUM_THREADS, MKL_NUM_THREADS and OMP_NUM_THREADS to 1 before that;
`require_one_blas_thread` verifies by measurement that it was done.
"""

from __future__ import annotations

import time

import numpy as np

from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.transport.base import HostArray
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Array, Call, OpDef
from strategy.graph.ops.half_precision import act_of, scratch_of_act
from strategy.graph.ops.scratch import ScratchSizes

_PROBE_SIZE = 512
_PROBE_RUNS = 4
_MOST_EXTRA_CPU = 0.25
_PROBES = 4
"""So often it is looked: beside other work a second thread may have hardly begun by the time that the first is done."""


class NumpyKernels:
    """See `executor.runtime.kernels.base.Kernels`."""

    xp = np
    host = True
    streams = None
    batched = ()

    def wait(self) -> None:
        """Nothing is left to be done."""

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """By the op's own array code."""
        return BoundAct(act_of(definition, call))

    def counts_rows(self, definition: OpDef, call: Call) -> bool:
        """The host is the device."""
        return True

    def scratch(self, definition: OpDef, call: Call) -> ScratchSizes:
        """As ops declare it."""
        return scratch_of_act(definition, call)

    def address(self, array: Array) -> int:
        """Where an array begins."""
        return int(array.__array_interface__["data"][0])

    def host_like(self, array: Array) -> HostArray:
        """A host array of this shape and dtype."""
        return np.empty_like(array)

    def download(self, array: Array, host: HostArray) -> None:
        """Copy."""
        np.copyto(host, array)

    def upload(self, host: HostArray, array: Array) -> None:
        """Copy."""
        np.copyto(array, host)


def blas_extra_cpu() -> float:
    """CPU time that other threads of this process spend during matrix products, over this thread's own.

    About 0 with one BLAS thread, about n - 1 with n. Measure while no other thread of the process works.
    """
    square = np.ones((_PROBE_SIZE, _PROBE_SIZE), np.float32)
    result = square @ square
    process, thread = time.process_time(), time.thread_time()
    for _ in range(_PROBE_RUNS):
        np.matmul(square, square, out=result)
    own = time.thread_time() - thread
    return (time.process_time() - process - own) / own


def require_one_blas_thread() -> None:
    """Verify that matrix products run in one thread.

    Raises:
        EnvironmentLacks: they use more.
    """
    extra = max(blas_extra_cpu() for _ in range(_PROBES))
    if extra > _MOST_EXTRA_CPU:
        raise EnvironmentLacks(
            f"BLAS uses about {1 + extra:.1f} threads in this rank and must use one; set OPENBLAS_NUM_THREADS=1, "
            "MKL_NUM_THREADS=1 and OMP_NUM_THREADS=1 before starting Python (`sbplan train --launch` does)"
        )
