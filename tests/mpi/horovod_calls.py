"""Every call of the Horovod-like module on NumPy arrays: `mpiexec -n N python -m tests.mpi.horovod_calls`."""

from __future__ import annotations

import json

import numpy as np

import executor.exchange.horovod as hvd
from strategy.base.errors import SbplanError


def main() -> None:
    """Rank 0 prints what it and all others saw."""
    try:
        hvd.rank()
    except SbplanError as error:
        early = str(error)
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    mine = np.array([rank, 1.0])
    found: dict[str, object] = {
        "early": early,
        "who": [rank, size, hvd.local_rank(), hvd.local_size(), hvd.is_initialized()],
        "average": hvd.allreduce(mine).tolist(),
        "sum": hvd.allreduce(mine, op=hvd.Sum).tolist(),
        "max": hvd.allreduce(mine, name="max", op=hvd.Max).tolist(),
        "untouched": mine.tolist(),
        "rows": hvd.allgather(np.full((rank + 1, 1), rank)).ravel().tolist(),
        "root": hvd.broadcast(mine, size - 1).tolist(),
    }
    told: list[float] = []
    handle = hvd.allreduce_async_(mine, op=hvd.Min, callback=lambda tensor: told.append(float(tensor[0])))
    found["min"] = hvd.synchronize(handle).tolist()
    found["polled"] = hvd.poll(handle)
    found["told"] = told
    parameters = {"a": np.full(2, rank), "b": np.full((2, 2), rank)}
    hvd.broadcast_parameters(parameters, root_rank=1)
    found["parameters"] = [int(array.sum()) for array in parameters.values()]
    steps: list[int] = []
    hvd.on_all_reduced(steps.append)
    hvd.exchange().register({"w": np.zeros(1)})
    for _ in range(2):
        hvd.exchange().announce("w", np.zeros(1))
        hvd.exchange().finish_step()
    found["steps"] = steps
    found["joined"] = hvd.join() in range(size)
    for array in (np.array([1, 2]), np.ones((4, 4))[:, 1], [1.0]):
        try:
            hvd.allreduce_(array)
        except SbplanError as error:
            found.setdefault("refused", []).append(str(error))  # type: ignore[attr-defined]
    everybody = hvd.allgather(np.frombuffer(json.dumps(found).ljust(4000).encode(), np.uint8)[None])
    hvd.shutdown()
    if rank == 0:
        print(json.dumps([json.loads(row.tobytes()) for row in everybody]), flush=True)
    hvd.init()  # again, and without a word at the end


if __name__ == "__main__":
    main()
