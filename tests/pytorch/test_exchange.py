"""A PyTorch loop that exchanges its gradients with ours loses what it loses with PyTorch's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mpi.launch import run_ranks


@pytest.mark.mpi
@pytest.mark.slow
def test_b1_b17_the_losses_of_a_pytorch_loop_are_those_of_ddp(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sbplan[torch]'")
    found = json.loads(run_ranks(2, "tests.pytorch.exchange_loop", str(tmp_path)))
    assert found["losses"] == found["ddp"], "to the bit: half a sum of two is the sum of two halves"
    assert found["losses"][0] - found["losses"][-1] > 1
    assert found["parameters"] == 0
    assert found["state"]
    assert found["halves"] == [2.0, 2.0, 2.0]
