"""A small model, trained and evaluated by two graphs that share its state.

mpiexec -n 2 python -m mpi4py -m tests.mpi.shared_state
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.global_tensor import placement, split
from executor.graph import Graph
from executor.world import current_world
from strategy.nn.layers import Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.tensor import DType

ROWS = 8


class Mlp(Module):
    """Two layers with a GELU between."""

    def __init__(self) -> None:
        self.one = Linear(4, 6, std=0.5)
        self.two = Linear(6, 3, std=0.5)

    def forward(self, *inputs: Tensor) -> Any:
        """[rows, 4] -> [rows, 3]."""
        return self.two(self.one(inputs[0]).gelu())


class Train(Graph):
    """Class probabilities by cross-entropy."""

    def __init__(self, model: Module, **options: Any) -> None:
        super().__init__(**options)
        self.model = model

    def build(self, x: Tensor, labels: Tensor) -> Any:
        """One step; gives the summed loss."""
        logits = self.model(x)
        loss, count = cross_entropy(logits, labels)
        self.minimize(loss, count)
        return loss


class Evaluate(Graph):
    """The logits."""

    def __init__(self, model: Module, **options: Any) -> None:
        super().__init__(**options)
        self.model = model

    def build(self, x: Tensor) -> Any:
        """Logits."""
        return self.model(x)


def features() -> tuple[np.ndarray, np.ndarray]:
    """Random rows and classes, the same on every rank."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((ROWS, 4)), rng.integers(0, 3, ROWS).astype(np.int32)


def trained(where: Any, *, num_micro_batches: int = 1, steps: int = 6, **options: Any) -> list[float]:
    """Losses of a few steps."""
    training = Training(ROWS, num_micro_batches=num_micro_batches, lr=0.1, dtype=DType.FLOAT64)
    train = Train(Mlp(), placement=where, training=training, **options)
    return [float(train(*features()).result().numpy()) for _ in range(steps)]


def main() -> None:
    """Train and evaluate in turns; every rank checks what it sees."""
    from mpi4py import MPI

    model, where = Mlp(), placement([0, 1])
    pins = {"*.one.weight": split(1)}
    train = Train(model, placement=where, training=Training(ROWS, lr=0.1, dtype=DType.FLOAT64), layouts=pins)
    evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64, layouts={"x": split(0)})
    x, labels = features()
    seen = []
    for _ in range(4):
        loss = float(train(x, labels).result().numpy())
        logits = evaluate(x).result().numpy()
        seen.append((loss, float(logits.sum())))
        held = train.state_dict()["model.one.weight"]
        assert held.piece is evaluate.state_dict()["model.one.weight"].piece
        assert held.piece is not None
        assert held.piece.shape == (4, 3)
    assert seen[-1][0] < seen[0][0]
    everyone = MPI.COMM_WORLD.gather(seen)
    if everyone is not None:
        assert all(other == everyone[0] for other in everyone)
        assert current_world().rank == 0
        print(f"{len(everyone)} ranks trained and evaluated alike")


if __name__ == "__main__":
    main()
