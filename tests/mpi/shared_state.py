"""A small model, trained and evaluated by two graphs that share its state.

mpiexec -n 2 python -m mpi4py -m tests.mpi.shared_state
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np

from executor.frontend.calls import DeferredCall
from executor.frontend.global_tensor import placement, split
from executor.frontend.graph import Graph
from executor.frontend.world import current_world
from strategy.nn.layers import Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.sbp.tensor import DType

ROWS = 8
STAGES = [placement([0]), placement([1])]


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


def interleaved(seed: int, where: Any, *, ahead: bool, buffers: int) -> list[np.ndarray]:
    """What a random sequence of training steps and evaluations gives, its results read at random times, or at once."""
    training = Training(ROWS, num_micro_batches=2, lr=0.1, dtype=DType.FLOAT64)
    rng, reading = random.Random(seed), random.Random(seed + 100)
    model = Mlp()
    stages = {"model.two.*": 1} if where is STAGES else {}
    last = {"loss*": 1} if stages else {}
    train = Train(model, placement=where, training=training, output_buffers=buffers, stages={**stages, **last})
    evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64, output_buffers=buffers, stages=stages)
    x, labels = features()
    calls: list[DeferredCall] = []
    found: dict[int, np.ndarray] = {}
    for number in range(12):
        calls.append(train(x, labels) if rng.random() < 0.5 else evaluate(x))
        waiting = [n for n in range(number + 1) if n not in found]
        now = waiting if not ahead else [n for n in waiting if reading.random() < 0.2]
        for n in now:
            found[n] = calls[n].result().numpy()
    found.update({n: call.result().numpy() for n, call in enumerate(calls) if n not in found})
    weights = [tensor.numpy() for _, tensor in sorted(train.state_dict().items())]
    return [found[n] for n in sorted(found)] + weights


def main() -> None:
    """Train and evaluate in turns, also ahead of results; every rank checks what it sees."""
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
    for seed, where in itertools.product(range(3), (placement([0, 1]), STAGES)):
        at_once, ahead = (interleaved(seed, where, ahead=early, buffers=3) for early in (False, True))
        for one, other in zip(at_once, ahead, strict=True):
            np.testing.assert_array_equal(one, other)
    everyone = MPI.COMM_WORLD.gather(seen)
    if everyone is not None:
        assert all(other == everyone[0] for other in everyone)
        assert current_world().rank == 0
        print(f"{len(everyone)} ranks trained and evaluated alike")


if __name__ == "__main__":
    main()
