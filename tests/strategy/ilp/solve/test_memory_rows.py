"""Memory rows: those that cannot bind are dropped, and choices that no row has room for."""

from __future__ import annotations

from strategy.ilp.certificate.proof import Drop, KeepRows
from strategy.ilp.problem import Node, Problem, Usage
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.memory_rows import drop_oversized, drop_slack_rows, joint_amounts


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


def test_joint_amounts_are_what_overlapping_spans_hold_together() -> None:
    usages = (Usage(0, 3, (4, 0)), Usage(1, 2, (7, 6)))
    core = build_core(_holding(usages, (Usage(0, 3, (6, 5)),), (Usage(1, 2, (2, 1)),), limit=9))
    room, held = joint_amounts(core, 0)
    rows = [core.load({0: choice, 1: 0, 2: 0}) - core.load({0: 1, 1: 0, 2: 0}) for choice in (0, 1)]
    assert held.shape == (room.size, 2)
    assert (held[:, 0] - held[:, 1]).max() == max(rows[0] - rows[1]) == 4 + 7 - 6
    assert room.min() == core.room.min()
