"""Restrictions: what is left is solved as before, and its answers are choices of the whole problem."""

from __future__ import annotations

import itertools
import random

import pytest

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage, evaluate
from strategy.space.restriction import complete, restrict

SIZES = (3, 2, 3, 4)
FIRST = 2


def drawn(seed: int) -> Problem:
    """Two nodes that decide, and two that follow from these."""
    rng = random.Random(seed)

    def cost() -> int:
        return FORBIDDEN if rng.random() < 0.2 else rng.randrange(50)

    nodes = tuple(
        Node(str(i), tuple(rng.randrange(50) for _ in range(size)), (Usage(0, 9, tuple(range(size))),))
        for i, size in enumerate(SIZES)
    )
    pairs = ((0, 1), (0, 2), (2, 1), (1, 3), (3, 0))
    edges = tuple(Edge(t, h, tuple(cost() for _ in range(SIZES[t] * SIZES[h]))) for t, h in pairs)
    return Problem("drawn", nodes, edges, 100)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_left_costs_and_holds_what_it_did(seed: int) -> None:
    whole = drawn(seed)
    left = restrict(whole, [[0, 2], [1]])
    assert left.kept[:FIRST] == ((0, 2), (1,))
    for picks in itertools.product(*(range(len(few)) for few in left.kept)):
        assert evaluate(left.problem, picks) == evaluate(whole, left.choice(picks))


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_that_goes_with_what_is_left(seed: int) -> None:
    whole = drawn(seed)
    left = restrict(whole, [[0, 2], [1]])
    for choice in itertools.product((0, 2), (1,), range(SIZES[2]), range(SIZES[3])):
        if evaluate(whole, choice).cost < FORBIDDEN:
            assert all(pick in few for pick, few in zip(choice, left.kept, strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_the_rest_follows_from_the_first(seed: int) -> None:
    whole = drawn(seed)
    for first in itertools.product(range(SIZES[0]), range(SIZES[1])):
        found = complete(whole, first)
        rest = itertools.product(range(SIZES[2]), range(SIZES[3]))
        least = min(evaluate(whole, (*first, *others)).cost for others in rest)
        assert found[:FIRST] == first
        assert min(evaluate(whole, found).cost, FORBIDDEN) == min(least, FORBIDDEN)


def test_what_depends_on_one_another_does_not_follow() -> None:
    nodes = tuple(Node(name, (0, 1)) for name in "abc")
    with pytest.raises(ValueError, match="nodes 1 and 2 depend on each other"):
        complete(Problem("chain", nodes, (Edge(1, 2, (0, 0, 0, 0)),)), [0])
