"""The verdict on a step, and what the scale makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.learning_rate import Decay, rate_at
from strategy.graph.ops.skipped_steps import SMALLEST_SCALE
from tests.strategy.graph.ops.test_half_precision import Array


def call(inputs: list[Array], outputs: list[Array], updates: list[Array], attrs: dict[str, float]) -> Call:
    return Call(np, attrs, tuple(inputs), tuple(outputs), tuple(updates), (), (), Workspace(np))


@pytest.mark.parametrize("norm", [np.inf, -np.inf, np.nan])
def test_a_norm_that_is_not_finite_does_not_count(norm: float) -> None:
    applied, step = np.array(4), np.array(7)
    run = op_definition("count_step").run
    run(call([np.array(norm)], [step], [applied], {}))
    assert (int(step), int(applied)) == (0, 4)
    run(call([np.array(0.0)], [step], [applied], {}))
    assert (int(step), int(applied)) == (5, 5)


def test_the_scale_never_falls_below_one() -> None:
    scale, good = np.array(1.5, np.float32), np.array(1)
    attrs = {"period": 5, "growth": 2.0, "backoff": 0.25}
    op_definition("adjust_scale").run(call([np.array(0)], [], [scale, good], attrs))
    assert (float(scale), int(good)) == (SMALLEST_SCALE, 0)


def test_the_rate_follows_the_steps_that_count() -> None:
    attrs = {"lr": 1.0, "warm_up": 4, "steps": 9, "final": 0.0, "power": 1.0, "factor": 0.5, "decay": str(Decay.COSINE)}
    found = np.empty(())
    for step, wanted in ((0, 0.0), (1, 0.25), (4, 1.0), (7, rate_at(6, attrs))):
        op_definition("learning_rate").run(call([np.array(step)], [found], [], attrs))
        assert float(found) == wanted
