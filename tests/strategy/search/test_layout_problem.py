"""The layout problem equals brute force, cost and memory; the whole campaign is `python -m tests.campaigns solver`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strategy.convert import Converter
from strategy.cost import CostModel
from strategy.errors import InfeasibleError
from strategy.layout import assign_stages
from strategy.lowering.arrangement import Pipeline
from strategy.lowering.schedule import Schedule
from strategy.nn.layers import Dropout, Linear
from strategy.nn.losses import mse_loss
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training, add_training
from strategy.placement import Placement
from strategy.search.layout_problem import SearchSpace, all_of, free, layout_problem
from strategy.tensor import DType, TensorSpec
from tests.campaigns.graph_layouts import check, nth_case
from tests.random_graphs import random_case
from tests.small_plans import cluster

CASES = 60


@pytest.mark.parametrize("first", range(0, CASES, 20))
def test_solver_equals_brute_force(first: int) -> None:
    exercised: list[str] = []
    for number in range(first, first + 20):
        assert list(check(nth_case(number, most=50), number, exercised)) == []
    assert {"two axes", "two stages", "binding limit", "impossible limit", "uneven"} <= set(exercised)


def test_an_op_without_signature_is_named() -> None:
    case = random_case(3)
    name = case.graph.ops[1].name
    case.options[name] = ()
    with pytest.raises(InfeasibleError, match=f"op {name} "):
        layout_problem(case.space)


class Dropping(Module):
    """Alike layers, whose masks differ."""

    def __init__(self, count: int) -> None:
        layers = [[Linear(8, 8), Dropout(0.25)] for _ in range(count)]
        self.layers = Layers([Chain(members) for members in layers])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        return mse_loss(self.layers(inputs[0]), inputs[0])


class Chain(Module):
    def __init__(self, members: Sequence[Module]) -> None:
        self.one, self.two = members

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.two(self.one(inputs[0]))
        return found


@pytest.mark.parametrize("count", [2, 5])
def test_layers_that_differ_in_their_masks_are_solved_once(count: int) -> None:
    tracer, module = Tracer(), Dropping(count)
    tracer.adopt(module, DType.FLOAT32)
    loss, total = module(tracer.input("x", TensorSpec((4, 8))))
    add_training(tracer.graph, loss.name, total.name, Training(4))
    graph = tracer.graph.build(loss=loss.name)
    seeds = [op.attrs["seed"] for op in graph.ops if op.name.endswith("dropout")]
    assert len(set(seeds)) == count
    placements = (Placement((0, 1), (2,), ("data",)),)
    cost = CostModel(cluster(2), {})
    pipeline = Pipeline(1, Schedule.ONE_F_ONE_B, False)
    stages, converter = assign_stages(graph, placements), Converter(cost, placements)
    problem = layout_problem(SearchSpace(graph, stages, pipeline, cost, converter, (1,), free))
    masks = [len(names) for names, _ in problem.classes if "dropout" in names[0]]
    assert masks == [count, count], "one decision forth and one back"


def test_rules_combine() -> None:
    case = random_case(4)
    op = case.graph.ops[0]
    first, second = case.options[op.name][:2]
    both = all_of({"free": free, "first": lambda _, signature: signature == first})
    assert both(op, first)
    assert not both(op, second)
