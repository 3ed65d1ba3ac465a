"""Graphs of one's own by plans: searched like presets, and trained as one device does it, whatever the plan does."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import placement
from executor.frontend.graph import Graph
from executor.frontend.world import World
from experiments.planning.best_plan import best_plan
from strategy.base.errors import GraphError, InputError
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Integers, RandomFeatures, find_model
from strategy.models.recorded import Feed
from strategy.nn.layers import BatchNorm, Dropout, LayerNorm, Linear
from strategy.nn.losses import cross_entropy
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.space.request import Pins, Request
from tests.executor.worlds import on_ranks
from tests.strategy.models.test_recorded import recorded
from tests.support.long_parameters import long_but

ROWS, WIDTH, CLASSES = 16, 8, 3
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, WIDTH)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, ROWS).astype(np.int32)
FEEDS = {"x": Feed(RandomFeatures("labels"), (WIDTH,)), "labels": Feed(Integers(CLASSES))}
TRAINING = Training(ROWS, lr=0.01)


class Block(Module):
    """x + MLP(norm(x))."""

    def __init__(self, width: int) -> None:
        self.norm = LayerNorm(width)
        self.up = Linear(width, 4 * width, std=0.1)
        self.down = Linear(4 * width, width, std=0.1)

    def forward(self, *inputs: Any) -> Any:
        (x,) = inputs
        return x + self.down(self.up(self.norm(x)).gelu())


class Net(Module):
    """Blocks in a list, or in several."""

    def __init__(self, blocks: int = 6) -> None:
        self.first = Linear(WIDTH, 32, std=0.3)
        self.blocks = [Block(32) for _ in range(blocks)]
        self.head = Linear(32, CLASSES, std=0.3)

    def forward(self, *inputs: Any) -> Any:
        x = self.first(inputs[0])
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Train(Graph):
    """Classes of rows; gives the summed loss."""

    def __init__(self, model: Module, **options: Any) -> None:
        super().__init__(**options)
        self.model = model

    def build(self, x: Tensor, labels: Tensor) -> Any:
        loss, count = cross_entropy(self.model(x), labels)
        self.minimize(loss, count)
        return {"loss": loss}


def machine(ranks: int) -> Cluster:
    """Cores like ours, with a host."""
    device = Device("core", "numpy", 2**30, 1e10, 1e10, 1e-6)
    link = Link(1e9, 1e-5)
    return Cluster(f"cores:{ranks}", 1, ranks, device, link, link, Host(2**30, 1e10, 1e10, 1e10, 1e-6))


def planned(ranks: int = 2, model: Module | None = None, **pins: Any) -> Plan:
    """A plan for the graph above."""
    graph = Train(model or Net(), training=TRAINING)
    return graph.search(machine(ranks), FEEDS, find=best_plan, pins=Pins(**pins))


def losses(make: Any, steps: int = 4) -> list[float]:
    """Of a training."""
    graph = make()
    return [graph(X, LABELS).result()["loss"].item() for _ in range(steps)]


@cache
def alone() -> list[float]:
    """On one device."""
    return on_ranks(1, lambda world: losses(lambda: Train(Net(), placement=0, training=TRAINING)))[0]


@pytest.mark.parametrize(
    "pins",
    long_but(
        [
            {"dp": 2, "micro_batch": 4},
            {"tp": 2},
            {"dp": 2, "zero_stage": 1, "micro_batch": 4},
            {"dp": 2, "zero_stage": 3, "micro_batch": 8},
            {"pp": 2, "micro_batch": 4, "recompute": Recompute.FULL},
            {"pp": 2, "micro_batch": 4, "schedule": Schedule.ZB_H1},
            {"pp": 2, "micro_batch": 4, "schedule": Schedule.INTERLEAVED, "virtual_stages": 3},
            {"pp": 2, "micro_batch": 2, "schedule": Schedule.GPIPE},
            {"dp": 2, "tiles": 2},
            {"dp": 2, "offload": Offload.OPTIMIZER},
            {"pp": 2, "micro_batch": 4, "offload": Offload.ACTIVATIONS},
        ],
        *(3, 6, 9),
    ),
    ids=lambda pins: " ".join(f"{key}={value}" for key, value in pins.items()),
)
def test_a_plan_trains_as_one_device_does(pins: dict[str, Any], tmp_path: Path) -> None:
    plan = planned(**pins)
    assert all(getattr(plan.config, key) == value for key, value in pins.items())
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.plan_hash == plan.plan_hash
    for found in on_ranks(plan.ranks, lambda world: losses(lambda: Train(Net(), plan=again))):
        np.testing.assert_allclose(found, alone(), rtol=2e-5)


@pytest.mark.long
def test_what_a_plan_leaves_is_a_state_like_any_other() -> None:
    """Under one plan, then under another, then without one."""
    one, other = planned(dp=2, zero_stage=3, micro_batch=8), planned(pp=2, micro_batch=4)

    def code(world: World) -> list[float]:
        found: list[float] = []
        state: dict[str, Any] = {}
        for steps, options in ((2, {"plan": one}), (1, {"plan": other}), (1, {"placement": 0, "training": TRAINING})):
            graph = Train(Net(), **options)
            if state:
                graph.load_state_dict(state, step=len(found))
            found += [graph(X, LABELS).result()["loss"].item() for _ in range(steps)]
            state = {name: tensor.numpy() for name, tensor in graph.state_dict().items()}
        return found

    for found in on_ranks(2, code):
        np.testing.assert_allclose(found, alone(), rtol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [machine(2), find_cluster("dgx-a100:2")], ids=["few", "many"])
def test_a_recorded_preset_is_searched_like_the_preset(cluster: Cluster) -> None:
    """Few devices and many: the same configuration, objective and bound."""
    model = find_model("gpt-tiny")

    def found(one: Any) -> Any:
        request = Request("gpt", one, Training(8), CostModel(cluster, {}), cluster.largest_memory_bytes)
        plan = best_plan(request, time_limit_s=300.0)
        return plan.config, plan.claims.objective_s, plan.claims.step_time_s

    assert found(recorded(model)) == found(model)


def test_unlike_blocks_are_searched_too() -> None:
    class Mixed(Net):
        def __init__(self) -> None:
            super().__init__(1)
            self.blocks = [Block(32), Linear(32, 32, std=0.2), Block(32), BatchNorm(32), Dropout(0.0)]

    plan = planned(model=Mixed())
    assert plan.claims.gap <= 0.01
    on_ranks(plan.ranks, lambda world: losses(lambda: Train(Mixed(), plan=plan)))


class MissingLoss(Train):
    """Minimizes nothing."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        return self.model(x)


class Pinned(Train):
    """Says itself how it lies."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        return super().build(x.pin("S(0)"), labels)


class Squared(Train):
    """Does something else for every number of samples."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        return super().build(x * (x.shape[0] ** 2), labels)


class Mean(Train):
    """Gives a mean over the samples that it sees, of which a step would add up several."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        return super().build(x, labels)["loss"] / x.shape[0]


class Branching(Train):
    """Likewise, other ops."""

    def build(self, x: Tensor, labels: Tensor) -> Any:
        return super().build(x.relu() if x.shape[0] > 2 else x, labels)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (MissingLoss, r"minimizes nothing; call self.minimize\(loss, count\) in build"),
        (Pinned, "the code lays out what a search would .*give the search pins="),
        (Squared, "op scale: factor: a figure of the graph does not grow by so much per sample"),
        (Mean, r"op scale: a mean over the samples of a micro-batch .*divide result\(\) by the whole"),
        (Branching, r"the code does other ops for \(2, 4, 6\) samples .*write it for any number"),
    ],
)
def test_what_cannot_be_recorded_says_so(graph: type[Train], message: str) -> None:
    with pytest.raises(InputError, match=message):
        graph(Net(1), training=TRAINING).recorded(FEEDS)


def test_wrong_uses_of_plans_are_told() -> None:
    plan = planned(dp=2)
    with pytest.raises(InputError, match=r"a plan says where and how a graph is trained; pin them when you search"):
        Train(Net(), plan=plan, placement=0)
    with pytest.raises(InputError, match="nothing says where the graph runs; give it placement=, or plan="):
        Train(Net(), training=TRAINING)(X, LABELS)
    with pytest.raises(InputError, match="nothing says how to train"):
        Train(Net()).search(machine(2), FEEDS, find=best_plan)
    with pytest.raises(InputError, match=r"not the arguments of build .*expected x, labels"):
        Train(Net(), training=TRAINING).recorded({"x": FEEDS["x"], "label": FEEDS["labels"]})

    def code(world: World) -> None:
        with pytest.raises(InputError, match=r"the plan is of another graph .*search anew"):
            Train(Net(3), plan=plan)(X, LABELS)
        with pytest.raises(InputError, match="not the inputs of the plan"):
            Train(Net(), plan=plan)(X[:8], LABELS[:8])
        model = Net()
        Train(model, placement=[0], training=TRAINING)(X, LABELS).result()
        with pytest.raises(InputError, match=r"state lies otherwise .*load its state_dict"):
            Train(model, plan=plan)(X, LABELS)

    on_ranks(2, code)


def test_a_graph_with_problems_tells_all_of_them() -> None:
    class Wrong(Train):
        def build(self, x: Tensor, labels: Tensor) -> Any:
            return super().build(x @ x + x.reshape(3, 3), labels)

    with pytest.raises(GraphError) as caught:
        Wrong(Net(1), training=TRAINING).recorded(FEEDS)
    assert len(caught.value.problems) == 2


def test_placements_of_plans_are_those_of_the_world() -> None:
    plan = planned(dp=2)
    with pytest.raises(InputError, match="no such ranks"):
        Train(Net(), plan=plan)(X, LABELS)
    assert plan.layout.stages.placements[0].devices == placement([0, 1]).devices
