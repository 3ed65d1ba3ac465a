"""Classes: repeated layers share their decisions; every value that lives somewhere has one that decides its home."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from strategy.base.errors import InfeasibleError
from strategy.cost.cost import CostModel
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter
from strategy.layout.layout import Home, assign_stages
from strategy.layout.schedule import Schedule
from strategy.nn.layers import Dropout, Linear
from strategy.nn.losses import mse_loss
from strategy.nn.module import Layers, Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.training import Training, add_training
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import DType, TensorSpec
from strategy.space.classes import classify
from strategy.space.space import SearchSpace, free
from tests.support.random_graphs import random_case
from tests.support.small_plans import cluster


def test_an_op_without_signature_is_named() -> None:
    case = random_case(3)
    name = case.graph.ops[1].name
    case.options[name] = ()
    with pytest.raises(InfeasibleError, match=f"op {name} "):
        classify(case.space)


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
    classes = classify(SearchSpace(graph, stages, pipeline, cost, converter, free))
    masks = [len(one.ops) for one in classes.of_ops if "dropout" in one.ops[0].name]
    assert masks == [count, count], "one decision forth and one back"


def test_every_home_has_one_writer() -> None:
    space = random_case(4).space
    first = next(op for op in space.graph.ops if op.outputs)
    found = classify(space)
    homes = {name: writer for name, _, writer in found.homes()}
    assert len(homes) == len(list(found.homes()))
    assert all(found.writer(name) == writer for name, writer in homes.items())
    assert homes[first.outputs[0]].homes == [
        option.layouts[len(first.inputs)] for option in found.of_op[first.name].options
    ]

    layout = homes[first.outputs[0]].homes[0]
    stages = replace(space.stages, homes={first.outputs[0]: Home(0, layout)})
    held = classify(replace(space, stages=stages))
    writer = held.writer(first.outputs[0])
    assert writer is not None
    assert writer.homes == [layout], "what lives where it lives has one choice"
    assert writer.found.index == len(held.of_ops)
