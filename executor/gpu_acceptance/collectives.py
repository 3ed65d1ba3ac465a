"""Part of acceptance: NCCL on one rank, and on two ranks that share the device.

Two ranks on one device show that numbers are right, not how fast they come.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from executor.gpu_acceptance.bench import Bench, import_nccl
from executor.gpu_acceptance.outcome import Figures, LeftOut, PartFailed
from executor.runtime.kernels.gpu.launch import address_of
from executor.runtime.transport.nccl import ID_NBYTES
from executor.supervision.environment import share_device

RANK_FLAG = "--collectives-rank"
_LIMIT_S = 120.0
_COUNT = 1 << 16
_FLOAT32, _SUM, _MAX = 7, 0, 2
"""Of ncclDataType_t and ncclRedOp_t."""


def collectives(bench: Bench) -> Figures:
    """Sums, maxima, gathers and scatters, of one rank and of two."""
    nccl = bench.nccl
    if nccl is None:
        raise PartFailed("CuPy finds no NCCL: install nvidia-nccl-cu13")
    version = int(nccl.get_version())
    one = checked(bench.xp, nccl, 0, 1, nccl.get_unique_id())
    code, written = bench.command(("-m", "executor.gpu_acceptance", RANK_FLAG, str(version)), _LIMIT_S)
    figures = {"version": version, "of_one_rank": one, "of_two_ranks": written.strip().splitlines()[-2:]}
    if code == 5:
        raise LeftOut(f"two ranks need mpiexec: {written.strip()}")
    if code:
        raise PartFailed(f"two ranks on one device end with code {code}", figures)
    return figures


def checked(xp: Any, nccl: Any, rank: int, size: int, unique: Any) -> list[str]:
    """Every collective that plans use, on figures that are known; their names.

    Raises:
        PartFailed: one gives something else.
    """
    communicator = nccl.NcclCommunicator(size, unique, rank)
    stream = xp.cuda.get_current_stream().ptr
    mine = xp.asarray(np.arange(_COUNT, dtype=np.float32) + rank)
    summed = size * np.arange(_COUNT, dtype=np.float32) + sum(range(size))
    every = np.concatenate([np.arange(_COUNT, dtype=np.float32) + other for other in range(size)])
    share = slice(rank * (_COUNT // size), (rank + 1) * (_COUNT // size))
    calls = {
        "all_reduce": (communicator.allReduce, (_COUNT, _FLOAT32, _SUM), _COUNT, summed),
        "all_reduce_max": (
            communicator.allReduce,
            (_COUNT, _FLOAT32, _MAX),
            _COUNT,
            np.arange(_COUNT, dtype=np.float32) + size - 1,
        ),
        "all_gather": (communicator.allGather, (_COUNT, _FLOAT32), _COUNT * size, every),
        "reduce_scatter": (
            communicator.reduceScatter,
            (_COUNT // size, _FLOAT32, _SUM),
            _COUNT // size,
            summed[share],
        ),
    }
    for name, (call, arguments, room, right) in calls.items():
        found = xp.empty(room, np.float32)
        call(address_of(mine), address_of(found), *arguments, stream)
        xp.cuda.Device().synchronize()
        if not np.array_equal(found.get(), right):
            raise PartFailed(f"{name} over {size} ranks is wrong")
    communicator.destroy()
    return list(calls)


def run_rank(xp: Any, version: int) -> int:
    """One of two ranks under mpiexec; prints what it has seen."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    share_device(version, comm.rank)
    nccl = import_nccl()
    unique = np.empty(ID_NBYTES, np.uint8)
    if comm.rank == 0:
        unique[:] = np.frombuffer(bytes(nccl.get_unique_id()), np.uint8)
    comm.Bcast(unique)
    found = checked(xp, nccl, comm.rank, comm.size, unique.tobytes())
    print(json.dumps({"rank": comm.rank, "checked": found}), flush=True)
    return 0
