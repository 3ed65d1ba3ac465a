"""Horovod's calls: on three ranks, on one without MPI, and without PyTorch."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import executor.exchange.horovod as hvd
from strategy.base.errors import EnvironmentLacks, InputError
from tests.mpi.launch import run_ranks


@pytest.mark.mpi
def test_b17_every_call_on_three_ranks() -> None:
    of_ranks = json.loads(run_ranks(3, "tests.mpi.horovod_calls"))
    for rank, found in enumerate(of_ranks):
        assert "call init() first" in found.pop("early")
        refused = found.pop("refused")
        assert ["mean of whole numbers" in refused[0], "not contiguous" in refused[1]] == [True, True]
        assert "neither of NumPy nor of PyTorch" in refused[2]
        assert found == {
            "who": [rank, 3, rank, 3, True],
            "average": [1.0, 1.0],
            "sum": [3.0, 3.0],
            "max": [2.0, 1.0],
            "untouched": [rank, 1.0],
            "rows": [0, 1, 1, 2, 2, 2],
            "root": [2.0, 1.0],
            "min": [0.0, 1.0],
            "polled": True,
            "told": [0.0],
            "parameters": [2, 4],
            "steps": [0, 1],
            "joined": True,
        }


def test_one_process_is_a_world_too(monkeypatch: pytest.MonkeyPatch) -> None:
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
        assert hvd.allreduce(np.array([3.0])).tolist() == [3.0]
        assert hvd.allgather(np.array([1, 2])).tolist() == [1, 2]
        with pytest.raises(InputError, match="is open already"):
            hvd.init()
        with pytest.raises(InputError, match="no such operation"):
            hvd.allreduce(np.array([3.0]), op="product")
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(EnvironmentLacks, match="PyTorch is not installed"):
            hvd.DistributedOptimizer(None)
    finally:
        hvd.shutdown()
    with pytest.raises(InputError, match="nothing is open"):
        hvd.size()
