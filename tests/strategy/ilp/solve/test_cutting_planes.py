"""Cutting planes find the best prices of memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import certify_elimination
from strategy.ilp.solve.cutting_planes import raise_prices_by_cuts
from strategy.ilp.solve.elimination import plan_elimination
from tests.strategy.ilp.solve.oracle import DILEMMA, bound_holds, feasible_cases


def test_elimination_at_the_best_prices_bounds_and_fixes_soundly() -> None:
    raised = fixed = 0
    for _, core, oracle in feasible_cases(44, 150):
        buckets = plan_elimination(core, max_cells=1 << 20)
        assert buckets is not None
        rest = certify_elimination(core, buckets, np.zeros(core.room.size))
        prices = raise_prices_by_cuts(core, buckets, np.zeros(core.room.size), offer=lambda _, bound, o=oracle: o[0])
        found = certify_elimination(core, buckets, prices)
        bound_holds(found, core, oracle)
        bound_holds(rest, core, oracle)
        assert found.lower_bound >= rest.lower_bound
        raised += found.lower_bound > rest.lower_bound
        fixed += bool(found.choices_below(oracle[0] + 1))
    assert raised >= 2
    assert fixed >= 60


def test_the_best_price_is_that_worked_by_hand() -> None:
    """The dilemma at a thousand times the cost: the best price is 2,000 a byte, the bound there 4,000."""
    node = DILEMMA.nodes[0]
    core = build_core(replace(DILEMMA, nodes=(replace(node, costs=(0, 10_000)),)))
    buckets = plan_elimination(core, max_cells=100)
    assert buckets is not None
    met: list[tuple[int, int]] = []

    def offer(picks: dict[int, int], bound: int) -> int:
        met.append((picks[0], bound))
        return 10_000

    prices = raise_prices_by_cuts(core, buckets, np.zeros(1), offer=offer)
    assert prices == pytest.approx([2_000.0], rel=1e-3)
    assert max(bound for _, bound in met) == pytest.approx(4_000, abs=4)
    assert {pick for pick, _ in met} == {0, 1}


def test_the_rounds_end_where_the_bound_meets_what_is_known() -> None:
    core = build_core(DILEMMA)
    buckets = plan_elimination(core, max_cells=100)
    assert buckets is not None
    rounds: list[int] = []

    def offer(picks: dict[int, int], bound: int) -> int:
        rounds.append(bound)
        return 0

    raise_prices_by_cuts(core, buckets, np.zeros(1), offer=offer)
    assert rounds == [0]
