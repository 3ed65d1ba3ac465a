"""Solutions: the gap between cost and bound."""

from __future__ import annotations

import pytest

from strategy.base.status import Status
from strategy.ilp.solve import Solution


@pytest.mark.parametrize(
    ("cost", "lower_bound", "gap"),
    [(None, 5, None), (10, 10, 0.0), (10, 8, 0.2), (-10, -12, 0.2), (0, -1, 1.0), (10, 12, 0.0)],
)
def test_the_gap_is_a_share_of_the_cost(cost: int | None, lower_bound: int, gap: float | None) -> None:
    choice = None if cost is None else (0,)
    assert Solution(Status.FEASIBLE, choice, cost, lower_bound).gap == gap
