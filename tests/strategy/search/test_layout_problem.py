"""The layout problem equals brute force, cost and memory; the whole campaign is `python -m tests.campaigns solver`."""

from __future__ import annotations

import pytest

from strategy.errors import InfeasibleError
from strategy.search.layout_problem import all_of, free, layout_problem
from tests.campaigns.solver import check, nth_case
from tests.random_graphs import random_case

CASES = 60


@pytest.mark.parametrize("first", range(0, CASES, 10))
def test_solver_equals_brute_force(first: int) -> None:
    exercised: list[str] = []
    for number in range(first, first + 10):
        assert list(check(nth_case(number, most=50), number, exercised)) == []
    assert {"two axes", "two stages", "binding limit", "impossible limit", "uneven"} <= set(exercised)


def test_an_op_without_signature_is_named() -> None:
    case = random_case(3)
    name = case.graph.ops[1].name
    case.options[name] = ()
    with pytest.raises(InfeasibleError, match=f"op {name} "):
        layout_problem(case.space)


def test_rules_combine() -> None:
    case = random_case(4)
    op = case.graph.ops[0]
    first, second = case.options[op.name][:2]
    both = all_of({"free": free, "first": lambda _, signature: signature == first})
    assert both(op, first)
    assert not both(op, second)
