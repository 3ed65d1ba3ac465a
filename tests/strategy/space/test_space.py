"""Search spaces: rules combine, and what they leave is found once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.graph.signature import op_signatures
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.space.candidate_space import space_of
from strategy.space.space import all_of, free
from tests.support.random_graphs import random_case
from tests.support.small_plans import request


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
    other = replace(space, along=replace(space.paths))
    options = space.options(op)
    assert len(asked) == len(options) > 1
    assert other.options(op) is options
    assert len(asked) == len(options)


@pytest.mark.parametrize("rules", [("samples", "samples shared"), ("data", "tensor"), ("samples split", "context")])
def test_options_are_those_of_all_that_are_kept(rules: tuple[str, str]) -> None:
    """Axis by axis nothing is lost that the rules allow, and nothing else is listed."""
    config = PlanConfig(2, 2, 1, 2, 2, Schedule.ONE_F_ONE_B)
    asked = request(4, Training(global_batch=8), model=GptConfig(2, 32, 4, 16, 64), backend="cuda")
    space = space_of(asked, config, rules)
    listed = 0
    for op in space.graph.ops:
        legal = op_signatures(space.graph, op, space.mesh)
        found = space.options(op)
        assert found == tuple(option for option in legal if space.allows(op, option))
        listed += len(legal) - len(found)
    assert listed > 100
