"""By what the ranks of a training move arrays between them: NCCL, CUDA-aware MPI, or MPI alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executor.runtime.kernels.base import Kernels
from executor.runtime.transport.base import Transport, lanes_of
from executor.runtime.transport.cuda_mpi import CudaMpiTransport
from executor.runtime.transport.cuda_support import agreed_cuda_support
from executor.runtime.transport.mpi import MpiTransport, load_mpi
from executor.runtime.transport.nccl import nccl_version, over_nccl
from executor.supervision.environment import share_device
from strategy.program.program import Program

if TYPE_CHECKING:
    from mpi4py import MPI


def open_transport(
    comm: MPI.Intracomm, program: Program, kernels: Kernels, *, share_devices: bool = False
) -> tuple[Transport, str]:
    """The transport of this rank, and how it was decided; "" where arrays are the host's. All ranks call it together.

    Args:
        comm: all ranks.
        program: what moves.
        kernels: of the device of this rank.
        share_devices: whether ranks may be on one device.
    """
    host = MpiTransport(comm, lanes_of(program))
    if kernels.host:
        return host, ""
    version = nccl_version()
    if share_devices and version is not None:
        share_device(version, comm.rank)
    found = over_nccl(host, program)
    if found is not host:
        return found, f"NCCL {version}"
    mpi, support = load_mpi(), agreed_cuda_support(comm)
    if support.found:
        return CudaMpiTransport(mpi, comm, host, kernels.address, kernels.wait), f"no NCCL; MPI {support}"
    return host, f"no NCCL; arrays go by pinned memory, for MPI {support}"
