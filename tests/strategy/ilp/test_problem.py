"""The problem's words: what a choice costs and how much memory it holds."""

from __future__ import annotations

import pytest

from strategy.ilp.problem import FORBIDDEN, Edge, Evaluation, Node, Problem, Usage, evaluate

PAIR = Problem(
    "pair",
    (Node("a", (1, 2), (Usage(0, 2, (5, 6)),)), Node("b", (10, 20, 30), (Usage(2, 4, (7, 8, 9)),))),
    (Edge(0, 1, (100, 200, 300, 400, 500, 600)),),
)


@pytest.mark.parametrize(("choice", "cost"), [((0, 0), 111), ((0, 2), 331), ((1, 0), 412), ((1, 2), 632)])
def test_edge_costs_are_row_major_tail_by_head(choice: tuple[int, int], cost: int) -> None:
    assert evaluate(PAIR, choice).cost == cost


def test_lifetimes_are_half_open_so_that_touching_ones_do_not_add() -> None:
    assert evaluate(PAIR, (1, 2)).peak == 9


def test_overlapping_lifetimes_add_and_empty_ones_hold_nothing() -> None:
    node = Node("a", (0,), (Usage(0, 3, (5,)), Usage(2, 4, (7,)), Usage(1, 1, (1000,))))
    assert evaluate(Problem("one", (node,), ()), (0,)) == Evaluation(cost=0, peak=12)


def test_a_forbidden_pair_costs_at_least_forbidden() -> None:
    problem = Problem("p", (Node("a", (3,)), Node("b", (4,))), (Edge(0, 1, (FORBIDDEN,)),))
    assert evaluate(problem, (0, 0)).cost == FORBIDDEN + 7


def test_a_choice_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        evaluate(PAIR, (0,))
