"""The working form: sums that saturate, memory by rows, and the way back to a full choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.status import Status
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import solve
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import certify_constant
from strategy.ilp.solve.core import NoChoiceError, add, subtract
from tests.strategy.ilp.problems import ladder
from tests.strategy.ilp.solve.oracle import replayed


def test_forbidden_entries_stay_forbidden() -> None:
    entries = np.array([1, FORBIDDEN])
    assert add(entries, np.array([4, 4])).tolist() == [5, FORBIDDEN]
    assert add(entries, np.array([FORBIDDEN, FORBIDDEN])).tolist() == [FORBIDDEN, FORBIDDEN]
    assert subtract(entries, np.int64(1)).tolist() == [0, FORBIDDEN]


def test_minima_of_lines_move_to_the_costs_and_theirs_to_the_constant() -> None:
    core = build_core(Problem("p", (Node("a", (0, 2)), Node("b", (0, 0))), (Edge(0, 1, (4, 5, 6, 9)),)))
    core.normalise(core.pairs())
    assert core.constant == 4
    assert core.costs[0].tolist() == [0, 4]
    assert core.tables[0][1].tolist() == [[0, 0], [0, 2]]
    assert core.costs[1].tolist() == [0, 1]


def test_what_every_choice_holds_comes_out_of_the_room() -> None:
    core = build_core(Problem("p", (Node("a", (0, 0), (Usage(0, 1, (6, 4)),)), Node("b", (0, 0))), (), limit=5))
    assert core.room.tolist() == [1]
    core.add_span(1, 0, 1, np.array([1, 3]))
    assert core.room.tolist() == [0]
    assert core.load({0: 1, 1: 0}).tolist() == [0]
    assert core.load({0: 0, 1: 1}).tolist() == [2 + 2]


def test_a_choice_is_lifted_through_all_that_was_dropped() -> None:
    core = build_core(Problem("p", (Node("a", (0, 1, 2)), Node("b", (5, 4))), (Edge(0, 1, (1, 2, 3, 4, 5, 6)),)))
    core.keep_choices(0, np.array([1, 2]))
    core.keep_choices(0, np.array([1]))
    assert core.tables[0][1].tolist() == [[5, 6]]
    assert core.lift({0: 0, 1: 1}) == {0: 2, 1: 1}


def test_a_child_shares_nothing_that_it_changes() -> None:
    core = build_core(Problem("p", (Node("a", (0, 1)), Node("b", (0, 1))), (Edge(0, 1, (0, 3, 3, 0)),)))
    child = core.branch(0, np.array([1]))
    assert (core.costs[0].size, child.costs[0].size) == (2, 1)
    assert child.steps == []
    with pytest.raises(NoChoiceError):
        core.branch(0, np.zeros(0, np.int64))


def test_the_time_is_checked_where_the_core_is_whole() -> None:
    core = build_core(Problem("p", (Node("a", (0, 1)),), ()))
    core.check_time()
    core.budget = Budget.of(0.0)
    with pytest.raises(OutOfTimeError):
        core.check_time()


def test_a_core_without_legal_choice_is_an_empty_proof() -> None:
    problem = replace(ladder(rungs=3, seed=0), limit=1)
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    assert replayed(problem, answer).lower_bound is None
    core = build_core(problem)
    with pytest.raises(NoChoiceError):
        core.fix_choices(certify_constant(core).proof, 0, {0: np.zeros(0, np.int64)})
