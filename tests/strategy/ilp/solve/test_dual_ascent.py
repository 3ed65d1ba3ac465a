"""Dual ascent: prices and messages climb to the best bound, and a probe says what a choice would cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve import dual_ascent
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.dual_ascent import DualAscent, start_dual_ascent
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.reductions import drop_forbidden
from strategy.ilp.solve.relaxation import pack_core
from tests.strategy.ilp.solve.oracle import DILEMMA, feasible_cases


def ascent_of(problem: Problem) -> DualAscent:
    core = build_core(problem)
    return start_dual_ascent(pack_core(core, lifetime_rank(problem)).arrays, core.constant, np.zeros(core.room.size))


def test_the_best_price_is_that_worked_by_hand() -> None:
    ascent = ascent_of(DILEMMA)
    assert ascent.bound == -math.inf
    ascent.ascend(300)
    assert ascent.bound == pytest.approx(4.0, rel=1e-2)
    assert ascent.best_prices == pytest.approx([2.0], rel=1e-2)


def test_the_bound_never_falls_and_never_passes_the_optimum() -> None:
    for problem, _, oracle in feasible_cases(47, 20):
        core = build_core(problem)
        drop_forbidden(core)
        arrays = pack_core(core, lifetime_rank(problem)).arrays
        if not core.costs:
            continue
        ascent = start_dual_ascent(arrays, core.constant, np.zeros(core.room.size))
        bounds = []
        for _ in range(5):
            ascent.ascend(4)
            bounds.append(ascent.bound)
        assert bounds == sorted(bounds)
        assert bounds[-1] + core.constant <= oracle[0] + 1e-6 * max(abs(oracle[0]), 1)


def test_the_clock_is_looked_at_between_steps_and_that_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, asking = ascent_of(DILEMMA), ascent_of(DILEMMA)
    at_once.ascend(40)
    monkeypatch.setattr(dual_ascent, "UNASKED_ENTRIES", 3 * asking.step_entries)
    asked = []
    asking.ascend(40, lambda: bool(asked.append(asking.bound)))
    assert len(asked) == math.ceil(40 / 3)
    assert at_once.state.scalars.tolist() == asking.state.scalars.tolist()
    assert at_once.best_prices.tolist() == asking.best_prices.tolist()
    assert at_once.decoded.tolist() == asking.decoded.tolist()
    late = ascent_of(DILEMMA)
    late.ascend(40, lambda: True)
    assert late.bound == -math.inf


def test_what_is_decoded_is_a_choice_and_its_score() -> None:
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, 9)),))
    ascent = ascent_of(problem)
    ascent.ascend(3)
    assert ascent.decoded.tolist() == [0, 1]
    assert ascent.decoded_score == ascent.bound == 1.0


def test_a_probe_is_the_bound_with_a_choice_taken_and_leaves_the_ascent_alone() -> None:
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, 9)),))
    ascent = ascent_of(problem)
    ascent.ascend(5)
    before = ascent.bound, ascent.decoded.tolist(), ascent.state.scalars.tolist()
    assert ascent.probe(0, 0, 100.0, 20) == pytest.approx(1.0)
    assert ascent.probe(0, 1, 100.0, 20) == pytest.approx(3.0)
    assert (ascent.bound, ascent.decoded.tolist(), ascent.state.scalars.tolist()) == before
