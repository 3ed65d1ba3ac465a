"""On codes of 8 bits as in halves, a plan computes what one device computes, up to the digits of the codes."""

from __future__ import annotations

import pytest

from executor.train import program_of
from strategy.passes.mixed_precision import Precision
from strategy.plan.verify import verify
from tests.support.small_plans import corpus, train
from tests.test_mixed_precision import differences, plan_of, plan_with

ROUNDING = 2.0**-4
"""Half the distance from 1 to the next code; where partial sums differ in a half, some codes are the next ones."""
DELAYED, CURRENT = Precision.FP8_DELAYED, Precision.FP8_CURRENT


@pytest.mark.parametrize(("precision", "degrees"), [(DELAYED, (2, 2, 1)), (CURRENT, (1, 3, 1)), (CURRENT, (2, 1, 2))])
def test_ranks_train_as_one_device_does_on_codes(precision: Precision, degrees: tuple[int, int, int]) -> None:
    plan = plan_of(precision, *degrees)
    program = program_of(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 2.0**-8
    assert worst < 8 * ROUNDING


@pytest.mark.parametrize(
    ("precision", "technique"),
    [
        (DELAYED, "zero 1"),
        (DELAYED, "zero 3 in stages"),
        (CURRENT, "zero 2"),
        (DELAYED, "recompute in stages"),
        (CURRENT, "recompute"),
        (DELAYED, "zbv"),
    ],
)
def test_codes_go_with_every_technique(precision: Precision, technique: str) -> None:
    plan = plan_with(technique, precision)
    program = program_of(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 2.0**-8
    assert worst < 8 * ROUNDING


def test_weights_are_gathered_as_codes() -> None:
    half, coded = (
        sum(plan_with("zero 3 in stages", precision).claims.sent_bytes_per_step)
        for precision in (Precision.BF16, DELAYED)
    )
    assert coded < 0.7 * half
