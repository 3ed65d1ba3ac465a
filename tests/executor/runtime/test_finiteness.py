"""What is not finite changes no state under any optimiser, and healthy steps write nothing that looks like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.runtime.finiteness import NonFinite, is_finite
from executor.train import Trainer
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.sbp.tensor import DType
from tests.mpi.plans import LAYOUTS, MODEL, small_plan
from tests.mpi.skipped import BAD_STEP, Poison, state
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, deduced_plan, lowered, request, train

TEXT = corpus(MODEL.vocabulary)


@pytest.mark.parametrize("layout", long_but([name for name in LAYOUTS if name != "grid"], 1, 4))
def test_a_healthy_step_writes_nothing_that_is_not_finite(layout: str) -> None:
    found: list[NonFinite | None] = []
    plan = small_plan(layout)
    train(plan, TEXT, steps=1, after_step=lambda trainer: found.append(trainer.find_non_finite()))
    assert found == [None] * plan.ranks


@pytest.mark.parametrize(
    "optimizer", long_but(Optimizer, *map([*Optimizer].index, (Optimizer.SGD, Optimizer.ADAMW, Optimizer.MUON)))
)
def test_a_step_that_is_not_finite_changes_nothing(optimizer: Optimizer) -> None:
    """On two ranks, one of which has a gradient with a cell of no number; the next step goes on as if nothing was."""
    training = Training(global_batch=8, num_micro_batches=2, optimizer=optimizer)
    plan = deduced_plan(request(2, training, model=MODEL), config_of(training, dp=2), ("data", "tensor"))
    program = lowered(plan)
    states: dict[int, list[dict[str, bytes]]] = {0: [], 1: []}
    broken: dict[int, list[bool]] = {0: [], 1: []}

    def look(trainer: Trainer) -> None:
        states[trainer.rank].append(state(plan, trainer))
        broken[trainer.rank].append(trainer.is_broken(None))

    done = train(plan, TEXT, steps=3, program=program, poison=[_Silent(), Poison(program, 1)], after_step=look)
    for rank in (0, 1):
        first, bad, last = states[rank]
        assert bad == first
        assert last != bad
        assert broken[rank] == [step == BAD_STEP for step in range(3)]
        assert all(np.isfinite(done.trainers[rank].worker.read(name)).all() for name in last)
    assert [report.is_finite for report in done.reports] == [True, False, True]


class _Silent:
    """Does nothing before an act."""

    trainer: Trainer | None = None

    def __call__(self, actor: int, number: int) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("array", "finite"),
    [
        (np.zeros(0), True),
        (np.array([1, 2]), True),
        (np.array([True]), True),
        (np.array([1.0, np.nan]), False),
        (np.array([1.0, -np.inf], np.float32), False),
        (np.array([np.inf]).astype(DType.BFLOAT16.numpy), False),
        (np.array(3.0, np.float16), True),
    ],
)
def test_what_is_finite(array: np.ndarray[Any, Any], finite: bool) -> None:
    assert is_finite(array) is finite
