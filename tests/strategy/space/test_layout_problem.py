"""The layout problem equals brute force, cost and memory; the whole campaign is `python -m tests.campaigns solver`."""

from __future__ import annotations

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.space.layout_problem import layout_problem
from tests.campaigns.graph_layouts import check, nth_case
from tests.support.long_parameters import long_but
from tests.support.random_graphs import random_case

CASES = 60


@pytest.mark.parametrize(("first", "cases"), long_but([(0, 10), *((first, 20) for first in range(0, CASES, 20))], 0))
def test_solver_equals_brute_force(first: int, cases: int) -> None:
    exercised: list[str] = []
    for number in range(first, first + cases):
        assert list(check(nth_case(number, most=50), number, exercised)) == []
    assert {"two axes", "two stages", "binding limit", "impossible limit", "uneven"} <= set(exercised)


def test_building_ends_in_time() -> None:
    with pytest.raises(OutOfTimeError, match="the time was up"):
        layout_problem(random_case(3).space, budget=Budget.of(-1))
