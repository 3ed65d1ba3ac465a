"""Batch norm in any layout: statistics, gradients and running averages are those of the whole batch on one device."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from strategy.base.errors import SbpError
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Role
from strategy.graph.signature import op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, assign_stages
from strategy.layout.schedule import Schedule
from strategy.models.base import Integers, RandomFeatures, Source
from strategy.nn.layers import BatchNorm, Conv2d, Linear, global_avg_pool, max_pool
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.passes.updates import Optimizer
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.campaigns.layouts import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import cluster
from tests.support.whole_graphs import Operand, WholeCase

SAMPLES, CHANNELS, CLASSES = 7, 6, 5


class Net(Module):
    """Two convolutions with batch norm between, a pooling, and a head."""

    def __init__(self) -> None:
        self.conv1 = Conv2d(3, CHANNELS, (3, 3), stride=(2, 2), padding=(1, 1), bias=False)
        self.norm = BatchNorm(CHANNELS)
        self.conv2 = Conv2d(CHANNELS, 4, (1, 1))
        self.head = Linear(4, CLASSES)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = inputs
        x = self.norm(self.conv1(images)).apply("tanh", "tanh")
        x = self.conv2(max_pool(x, "pool", (2, 2), (1, 1)))
        logits = self.head(global_avg_pool(x, "mean"))
        return cross_entropy(logits, labels)


@dataclass(frozen=True, slots=True)
class Images:
    """A small classifier of images."""

    layers: int = 1
    parameters: int = 0
    tokens_per_sample: int = 1

    @property
    def batch(self) -> Mapping[str, Source]:
        return {"images": RandomFeatures("labels"), "labels": Integers(CLASSES)}

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        return {"images": TensorSpec((micro_batch, 3, 6, 7)), "labels": TensorSpec((micro_batch,), DType.INT32)}

    def module(self) -> Module:
        return Net()


def training(micro_batches: int) -> Training:
    return Training(
        SAMPLES * micro_batches, micro_batches, dtype=DType.FLOAT64, optimizer=Optimizer.SGD, momentum=0.0, max_norm=1e9
    )


def laid_out(graph: Graph, mesh: Shape, rng: random.Random) -> tuple[Layout, CostModel]:
    """Every op under a random signature other than all-broadcast, where it has one."""
    size = math.prod(mesh)
    placements = (Placement(tuple(range(size)), mesh, ("data", "tensor")[: len(mesh)]),)
    stages, cost = assign_stages(graph, placements), CostModel(cluster(size), {})
    converter = Converter(cost, placements)
    while True:
        legal = {op.name: op_signatures(graph, op, mesh) for op in graph.ops}
        drawn = {name: rng.choice(signatures[1:] or signatures) for name, signatures in legal.items()}
        try:
            return lay_out(graph, stages, drawn, converter), cost
        except SbpError:
            continue


def operands_of(graph: Graph) -> dict[str, Operand]:
    found = {}
    for position, value in enumerate((*graph.with_role(Role.INPUT), *graph.with_role(Role.VARIABLE))):
        bounds = None if value.spec.dtype.is_float else (0.0, float(CLASSES))
        found[value.name] = Operand(value.spec, bounds, position)
    return found


@pytest.mark.parametrize("number", long_but(range(5), 0))
@pytest.mark.parametrize(("mesh", "micro_batches"), [((2,), 1), ((3,), 2), ((2, 2), 1)])
def test_a_step_in_any_layout_is_a_step_on_one_device(mesh: Shape, micro_batches: int, number: int) -> None:
    graph = training_graph(Images(), training(micro_batches))
    layout, cost = laid_out(graph, mesh, random.Random(number))
    pipeline = Pipeline(micro_batches, Schedule("1f1b"), False)
    case = WholeCase(number, graph, (), {}, operands_of(graph), layout, pipeline, cost, DType.FLOAT64)
    assert list(check(case)) == []


def test_statistics_of_a_split_batch_are_partial_and_used_whole() -> None:
    graph = training_graph(Images(), training(1))
    squares = op_signatures(graph, graph.by_name["norm.squares"], (2,))
    assert [s.outputs for s in squares if s.inputs[0] == (Split(0),)] == [((P,), (P,))]
    used = op_signatures(graph, graph.by_name["norm.norm"], (2,))
    assert [s.inputs[1:3] for s in used if s.inputs[0] == (Split(0),)] == [((B,), (B,))]


def test_running_averages_are_updated_after_the_last_micro_batch_and_never_in_evaluation() -> None:
    trains, evaluates = (make(Images(), training(2)) for make in (training_graph, evaluation_graph))
    kinds = [op.kind for op in trains.ops if op.updates]
    assert kinds.count("running_average") == 1
    last = max(i for i, op in enumerate(trains.ops) if op.kind == "accumulate")
    assert all(i > last for i, op in enumerate(trains.ops) if op.updates)
    assert not evaluates.updater
    assert "square_deviations" not in {op.kind for op in evaluates.ops}
