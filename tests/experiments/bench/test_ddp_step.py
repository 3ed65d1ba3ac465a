"""PyTorch's step in the exchange bench: it computes as ours does, in the same order, and ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.bench.ddp_step import ddp_step, has_torch, meet


@pytest.mark.skipif(not has_torch(), reason="PyTorch is not installed: pip install sbplan[torch]")
def test_every_gradient_is_computed_once_in_the_order_of_ours(tmp_path: Path) -> None:
    import torch

    meet(tmp_path / "store", 0, 1, link="lo")
    gradients = {f"g{number}": np.ones(size, np.float32) for number, size in enumerate((5, 300_000, 7))}
    spent: list[str] = []
    step = ddp_step(gradients, spent.append, 1)
    for _ in range(3):
        step()
    torch.distributed.destroy_process_group()
    assert spent == 3 * list(gradients)
