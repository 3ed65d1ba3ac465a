"""Search spaces: rules combine, and what they leave is found once."""

from __future__ import annotations

from dataclasses import replace

from strategy.search.layouts.space import all_of, free
from tests.support.random_graphs import random_case


def test_rules_combine() -> None:
    case = random_case(4)
    op = case.graph.ops[0]
    first, second = case.options[op.name][:2]
    both = all_of({"free": free, "first": lambda _, signature: signature == first})
    assert both(op, first)
    assert not both(op, second)


def test_options_are_found_once_for_all_paths() -> None:
    space = random_case(4).space
    op = space.graph.ops[0]
    asked: list[str] = []
    space = replace(space, keep=lambda op, _: not asked.append(op.name), known={})
    other = replace(space, along=space.paths.and_also(space.paths))
    options = space.options(op)
    assert len(asked) == len(options) > 1
    assert other.options(op) is options
    assert len(asked) == len(options)
