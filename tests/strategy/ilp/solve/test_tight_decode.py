"""Tight decode: where a bound leaves the optimum's choices, it is found; where it leaves none, nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.ilp.problem import Edge, Node, Problem, evaluate
from strategy.ilp.solve import solve, tight_decode
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import Core
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.message_bound import certify_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import relax
from tests.strategy.ilp.solve.oracle import feasible_cases

# Two pairs that must agree or not, all at the same cost: messages know the optimum, and every choice looks alike.
AGREE, DIFFER = (0, 9, 9, 0), (9, 0, 0, 9)


def ring(*tables: tuple[int, ...]) -> Problem:
    """Nodes with two choices each, in a ring of these tables."""
    nodes = tuple(Node(f"n{i}", (1, 1)) for i in range(len(tables)))
    return Problem("ring", nodes, tuple(Edge(i, (i + 1) % len(tables), table) for i, table in enumerate(tables)))


def decoded(problem: Problem, core: Core, below: int) -> tuple[int, ...] | None:
    """The choice of a problem that follows from some messages."""
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
    ascent.ascend(20)
    found = tight_decode.tight_decode(core, certify_messages(relaxation, ascent), below)
    if found is None:
        return None
    left, picks = found
    full = left.lift(picks)
    return tuple(full[node] for node in range(len(problem.nodes)))


@pytest.mark.parametrize("tables", [(AGREE, DIFFER, DIFFER), (DIFFER, AGREE, AGREE, DIFFER)])
def test_choices_that_all_look_alike_are_decided_together(tables: tuple[tuple[int, ...], ...]) -> None:
    problem = ring(*tables)
    choice = decoded(problem, build_core(problem), below=len(tables) + 1)
    assert choice is not None
    assert evaluate(problem, choice).cost == len(tables)


def test_what_is_found_is_the_best_of_random_problems_where_the_bound_leaves_it() -> None:
    found = nothing = 0
    for problem, core, (cost, _) in feasible_cases(61, 60):
        if core.room.size or not core.costs:
            continue
        choice = decoded(problem, core, below=cost + 1)
        assert choice is not None
        assert evaluate(problem, choice).cost == cost
        found += 1
        choice = decoded(problem, core, below=cost)  # a bound may leave some of what costs more
        nothing += choice is None
        assert choice is None or evaluate(problem, choice).cost >= cost
    assert found >= 10
    assert nothing >= 3


def test_of_too_much_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tight_decode, "TIGHT_CELLS", 1)
    problem = ring(AGREE, DIFFER, DIFFER)
    with pytest.raises(tight_decode.TooManyLeftError):
        decoded(problem, build_core(problem), below=100)
    answer = solve(problem, gap=1e-3)
    assert answer.cost == len(problem.nodes)


def test_a_search_that_allows_a_gap_ends_at_the_optimum_that_messages_know() -> None:
    problem = ring(*([DIFFER] * 9), AGREE)
    answer = solve(problem, gap=1e-3)
    assert answer.cost is not None
    assert answer.cost - answer.lower_bound <= 1e-3 * answer.cost
