"""Message bounds: what an ascent found holds in exact integers, and fixes soundly."""

from __future__ import annotations

import numpy as np

from strategy.ilp.certificate.bounds import least
from strategy.ilp.problem import Edge, Node, Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import certify_constant
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.message_bound import certify_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import relax
from tests.strategy.ilp.certificate.proofs import view
from tests.strategy.ilp.solve.oracle import bound_holds, feasible_cases


def test_messages_and_prices_bound_and_fix_soundly() -> None:
    tight = fixed = 0
    for problem, core, oracle in feasible_cases(43, 150):
        relaxation = relax(core, lifetime_rank(problem))
        ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
        ascent.ascend(60)
        found = certify_messages(relaxation, ascent)
        bound_holds(found, core, oracle)
        assert found.lower_bound >= certify_constant(core).lower_bound
        assert abs(found.lower_bound - ascent.bound - core.constant) <= 1 + 1e-6 * abs(ascent.bound)
        tight += found.lower_bound == oracle[0]
        fixed += bool(found.choices_below(oracle[0] + 1))
    assert tight >= 50
    assert fixed >= 60


def test_the_bound_and_what_each_choice_costs_are_those_worked_by_hand() -> None:
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, 9)),))
    core = build_core(problem)
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(0))
    ascent.ascend(20)
    found = certify_messages(relaxation, ascent)
    assert found.lower_bound == 1
    assert least(view(core), found.proof) == 1
    assert found.choices_below(2)[0].tolist() == [0]
    assert found.choices_below(10) == {}


def test_messages_too_large_for_integers_are_scaled_down_and_still_hold() -> None:
    problem = Problem("p", (Node("a", (0, 3)), Node("b", (0, 1))), (Edge(0, 1, (4, 0, 0, 9)),))
    core = build_core(problem)
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(0))
    ascent.ascend(20)
    ascent.best_messages.to_tail[:] += 1e19
    found = certify_messages(relaxation, ascent)
    assert found.lower_bound <= 1
    assert least(view(core), found.proof) == found.lower_bound
