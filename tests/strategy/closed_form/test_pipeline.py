"""The closed form of a pipeline equals its schedule, stage by stage."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.closed_form.pipeline import StageSeconds, step_seconds


def step(pp: int, m: int, v: int = 1, *, body: float = 1.0, head: float = 0.0, message: float = 0.0,
         apart: float = 1.0) -> float:  # fmt: skip
    arrays = (np.array([value]) for value in (body, head, message))
    stages = StageSeconds(*arrays, np.array([apart]))
    return float(step_seconds(stages, np.array([m]), np.array([pp]), np.array([v]))[0])


@pytest.mark.parametrize(("pp", "m"), [(1, 1), (1, 8), (4, 4), (8, 64)])
def test_equal_stages_have_the_bubble_of_the_paper(pp: int, m: int) -> None:
    """Narayanan et al. (2021): bubble over ideal = (p - 1) / m."""
    assert step(pp, m) == pytest.approx(m * (1 + (pp - 1) / m))


def test_interleaving_divides_the_bubble() -> None:
    assert step(8, 16, 4) - 16 == pytest.approx((step(8, 16) - 16) / 4)


def test_the_longest_stage_sets_the_pace() -> None:
    assert step(4, 100, head=0.5) == pytest.approx(100 * 1.5 + 3)
    assert step(4, 100, head=0.4, apart=0.0) == pytest.approx(103 * 1.1)


def test_a_head_that_is_partly_shared_out_lies_between() -> None:
    """A quarter is on top of the last stage; of the rest each of four stages has a fourth."""
    assert step(4, 100, head=0.4, apart=0.25) == pytest.approx(100 * (1.1 + 0.075) + 3 * 1.075)


def test_messages_are_for_neighbours() -> None:
    assert step(1, 8, message=9.0) == 8
    assert step(2, 8, message=0.5) == pytest.approx(9 * 1.5)
