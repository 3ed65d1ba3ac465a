"""What single reductions find, and when they stop; that they are exact is in `test_solve` and `certificate`."""

from __future__ import annotations

import time

import numpy as np

from strategy.ilp.certificate.check import check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate, Drop, KeepRows, Merge, Passed, Prices, Proof
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.memory_rows import drop_oversized, drop_slack_rows
from strategy.ilp.solve.reductions import drop_dominated, merge_functional, reduce_core
from tests.strategy.ilp.certificate.proofs import sizes
from tests.strategy.ilp.problems import ladder


def _holding(*usages: tuple[Usage, ...], limit: int) -> Problem:
    """Nodes that cost less the more they hold."""
    nodes = tuple(Node(f"n{i}", tuple(range(len(held[0].amounts))), held) for i, held in enumerate(usages))
    return Problem("holding", nodes, (), limit)


def test_a_row_that_an_earlier_one_implies_is_dropped() -> None:
    """From the first instant to the second one byte may come, and there is one byte more of room."""
    problem = _holding(
        (Usage(0, 2, (10, 0)),), (Usage(1, 4, (10, 0)),), (Usage(3, 5, (1, 0)),), (Usage(0, 2, (1,)),), limit=10
    )
    core = build_core(problem)
    assert core.room.tolist() == [9, 10]
    drop_slack_rows(core)
    assert core.room.tolist() == [9]
    assert isinstance(core.steps[-1], KeepRows)


def test_a_row_that_a_later_one_implies_is_dropped() -> None:
    problem = _holding(
        (Usage(3, 5, (10, 0)),), (Usage(1, 4, (10, 0)),), (Usage(0, 2, (1, 0)),), (Usage(3, 5, (1,)),), limit=10
    )
    core = build_core(problem)
    assert core.room.tolist() == [10, 9]
    drop_slack_rows(core)
    assert core.room.tolist() == [9]


def test_rows_with_equal_items_leave_the_tightest() -> None:
    problem = _holding(
        (Usage(0, 9, (10, 0)),),
        (Usage(0, 9, (10, 0)),),
        *[(Usage(t, t + 1, (1 + t % 3,)),) for t in range(9)],
        limit=15,
    )
    core = build_core(problem)
    assert core.room.tolist() == [14, 13, 12] * 3
    drop_slack_rows(core)
    assert core.room.tolist() == [12]


def test_what_a_node_gives_up_for_something_else_counts_by_the_difference() -> None:
    problem = _holding((Usage(0, 2, (10, 0)), Usage(2, 4, (9, 0))), (Usage(0, 4, (5, 1)),), limit=12)
    core = build_core(problem)
    assert len(core.room) == 2
    drop_slack_rows(core)
    assert core.room.tolist() == [11]
    assert {rows: held.tolist() for rows, held in core.spans[0].items()} == {(0, 1): [10, 0]}


def test_a_choice_that_is_too_large_at_one_instant_is_dropped() -> None:
    problem = _holding((Usage(0, 3, (4, 4, 0)), Usage(1, 2, (7, 6, 0))), (Usage(0, 3, (1, 5)),), limit=11)
    core = build_core(problem)
    drop_oversized(core)
    (step,) = [step for step in core.steps if isinstance(step, Drop)]
    assert (step.node, step.choices.tolist()) == (0, [0])


def test_dominance_names_a_winner_that_stays() -> None:
    """Of equals the first stays; the last is cheaper but holds more."""
    node = Node("a", (5, 4, 4, 9, 0), (Usage(0, 2, (3, 2, 2, 2, 9)),))
    problem = Problem("p", (node, Node("b", (0, 1), (Usage(0, 2, (9, 0)),))), (Edge(0, 1, (0,) * 10),), limit=12)
    core = build_core(problem)
    core.steps.clear()
    drop_dominated(core, [0])
    (step,) = core.steps
    assert isinstance(step, Drop)
    assert (step.node, step.choices.tolist(), step.by.tolist()) == (0, [0, 2, 3], [1, 1, 1])


def test_of_a_bijection_the_node_with_fewer_tables_moves() -> None:
    identity = (0, FORBIDDEN, FORBIDDEN, 0)
    problem = Problem(
        "p",
        tuple(Node(f"n{i}", (0, 1)) for i in range(4)),
        (Edge(0, 1, identity), Edge(0, 2, (0, 1, 2, 0)), Edge(0, 3, (1, 0, 0, 3))),
    )
    core = build_core(problem)
    core.steps.clear()
    merge_functional(core)
    assert core.steps == [Merge(1, 0)]


def test_reductions_stop_at_their_deadline_with_a_whole_core() -> None:
    """What was done until then is proved, at every moment of a longer run."""
    problem = ladder(rungs=40, seed=1, limit=3 * 10**9)
    started_s = time.perf_counter()
    reduce_core(build_core(problem))
    taken_s = time.perf_counter() - started_s
    stops = set()
    for part in range(8):
        core = build_core(problem)
        deadline_s = time.perf_counter() + taken_s * part / 8
        reduce_core(core, deadline_s=deadline_s)
        assert time.perf_counter() - deadline_s < 1.0
        prices, messages = np.zeros(len(core.room), np.int64), np.zeros(sizes(core), np.int64)
        proof = Proof(tuple(core.steps), Passed(Prices(prices, 0, 0), messages))
        verdict = check(problem, Certificate(problem_digest(problem), None, None, core.constant, proof))
        assert verdict.steps == len(core.steps)
        stops.add(verdict.steps)
    assert len(stops) >= 2
