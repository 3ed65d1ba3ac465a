"""Whether the MPI library moves memory of a GPU: what it says itself, asked once and agreed by all ranks.

A library that does not say so is taken to move memory of the host alone; device pointers would end it there.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.runtime.transport.mpi import load_mpi

if TYPE_CHECKING:
    from mpi4py import MPI

_KINDS = "mpi_memory_alloc_kinds"
"""In the info of a communicator: what memory the library takes (MPI 4.1), such as "system,mpi,cuda:device"."""
_QUERY, _GPU_QUERY = "MPIX_Query_cuda_support", "MPIX_GPU_query_support"
"""`int (void)` of Open MPI, MVAPICH and MPICH, and `int (int gpu, int *found)` of MPICH and its descendants."""
_CUDA = 0
"""`MPIX_GPU_SUPPORT_CUDA`."""


@dataclass(frozen=True, slots=True)
class CudaSupport:
    """Whether device pointers may be handed to MPI, and how that is known."""

    found: bool
    how: str

    def __str__(self) -> str:
        return f"{'moves' if self.found else 'does not move'} memory of GPUs ({self.how})"


def cuda_support(comm: MPI.Intracomm, library: Any) -> CudaSupport:
    """What the library says on this rank, MPI being initialised.

    Args:
        comm: all ranks.
        library: the loaded library, as `mpi_library` finds it.
    """
    kinds = comm.Get_info().Get(_KINDS) or ""
    if any(kind.strip().split(":")[0] == "cuda" for kind in kinds.split(",")):
        return CudaSupport(True, f"{_KINDS} is {kinds}")
    if (query := getattr(library, _QUERY, None)) is not None:
        said = int(query())
        return CudaSupport(said == 1, f"{_QUERY} says {said}")
    if (query := getattr(library, _GPU_QUERY, None)) is not None:
        flag = ctypes.c_int(0)
        query(_CUDA, ctypes.byref(flag))
        return CudaSupport(flag.value == 1, f"{_GPU_QUERY} says {flag.value}")
    return CudaSupport(False, f"the library has neither {_QUERY} nor {_GPU_QUERY}")


def mpi_library(mpi: ModuleType) -> ctypes.CDLL:
    """The MPI library that mpi4py has loaded, by the names that its module sees."""
    return ctypes.CDLL(str(mpi.__file__))


def agreed_cuda_support(comm: MPI.Intracomm) -> CudaSupport:
    """The same on all ranks, which call it together: only if the library of every rank says so."""
    own = cuda_support(comm, mpi_library(load_mpi()))
    every = np.zeros(comm.size, np.uint8)
    comm.Allgather(np.array([own.found], np.uint8), every)
    if not own.found or every.all():
        return own
    return CudaSupport(False, f"not on ranks {np.flatnonzero(every == 0).tolist()}")
