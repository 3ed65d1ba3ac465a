"""Candidates: what a search chooses from.

A candidate is one way to cut the devices into stages x data x tensor and the batch into micro-batches. Its search space
holds the signatures that the rules of its axes and the user's pins leave for every op.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strategy.arrangement import Pipeline
from strategy.convert import Converter
from strategy.cost import CostModel
from strategy.graph import Graph, Op, template_name
from strategy.layout import assign_stages
from strategy.layout_problem import Keep, SearchSpace
from strategy.measurement import Features
from strategy.models.gpt import GptConfig
from strategy.placement import Placement
from strategy.plan import PlanConfig
from strategy.rules import along_axes, pinned
from strategy.sbp import B, NdSbp
from strategy.schedule import Schedule
from strategy.signature import Signature, op_signatures
from strategy.tensor import Shape
from strategy.training import Training, training_graph

AXES = ("data", "tensor")

FREE = ("samples split", "samples shared")
"""The rules of the axes in a search: all but the samples is free."""

ACTS_PER_LAYER = 8
"""Matrix products and attention of a layer, forward and backward, counted low."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What a user fixes: any of the degrees, the layout of any value, the stage of any op (both by name or pattern)."""

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    micro_batch: int | None = None
    num_micro_batches: int | None = None
    schedule: Schedule | None = None
    layouts: Mapping[str, NdSbp] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `training.num_micro_batches` is the search's to choose."""

    model_name: str
    model: GptConfig
    training: Training
    cost: CostModel
    memory_limit_bytes: int
    pins: Pins = Pins()

    @property
    def devices(self) -> int:
        """All devices of the cluster are used."""
        return self.cost.cluster.devices

    def training_with(self, config: PlanConfig) -> Training:
        """The training with the micro-batches of a candidate."""
        return replace(self.training, num_micro_batches=config.num_micro_batches)

    def pipeline_of(self, config: PlanConfig) -> Pipeline:
        """The pipeline of a candidate."""
        return Pipeline(config.num_micro_batches, config.schedule, self.cost.cluster.overlaps)


def candidates_of(request: Request) -> Iterator[PlanConfig]:
    """Every division of devices and batch that the pins allow; the smallest numbers of micro-batches first."""
    pins, devices, batch = request.pins, request.devices, request.training.global_batch
    for pp in _divisors(devices):
        if pp > max(request.model.layers, 1) or pins.pp not in (None, pp) or pp <= max(pins.stages.values(), default=0):
            continue
        for tp in _divisors(devices // pp):
            dp = devices // pp // tp
            if pins.tp not in (None, tp) or pins.dp not in (None, dp) or batch % dp:
                continue
            for count in _divisors(batch // dp):
                micro = batch // dp // count
                if pins.micro_batch not in (None, micro) or pins.num_micro_batches not in (None, count):
                    continue
                schedule = pins.schedule or Schedule.ONE_F_ONE_B
                yield PlanConfig(dp, tp, pp, micro, count, schedule)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def quick_bound_ns(request: Request, config: PlanConfig) -> int:
    """A bound without solving anything: matrix products spread evenly, and the fixed price of every act."""
    model, cost = request.model, request.cost
    tokens = request.training.global_batch * model.sequence
    weights = 12 * model.layers * model.width**2 + model.vocabulary * model.width
    flop = 6 * tokens * weights + 14 * model.layers * tokens * model.sequence * model.width
    slots = config.num_micro_batches + config.pp - 1
    spread = flop / request.devices * slots / config.num_micro_batches
    rate = cost.seconds(Features("matmul", 10**15, 0)) / 1e15
    fixed = cost.seconds(Features("matmul", 0, 0)) * ACTS_PER_LAYER * (model.layers // config.pp)
    return int((spread * rate * 0.999 + fixed * slots) * 1e9)


def space_of(request: Request, config: PlanConfig, rules: Sequence[str]) -> SearchSpace:
    """The layouts of one candidate under one rule per axis; every stage's time counts once.

    Raises:
        InputError: a pin matches nothing, or pinned stages make a pass go against the pipeline.
    """
    graph = training_graph(request.model, request.training_with(config))
    size, mesh = config.dp * config.tp, (config.dp, config.tp)
    placements = tuple(Placement(tuple(range(s * size, (s + 1) * size)), mesh, AXES) for s in range(config.pp))
    return SearchSpace(
        graph=graph,
        stages=assign_stages(graph, placements, pins=request.pins.stages),
        pipeline=request.pipeline_of(config),
        cost=request.cost,
        converter=Converter(request.cost, placements),
        weights=(1,) * config.pp,
        keep=_keep(graph, mesh, rules, request.pins),
    )


def _keep(graph: Graph, mesh: Shape, rules: Sequence[str], pins: Pins) -> Keep:
    by_rule = along_axes(graph, mesh, rules)
    if not pins.layouts:
        return by_rule
    by_pin = pinned(graph, {name: _on_mesh(nd, mesh) for name, nd in pins.layouts.items()})

    def keep(op: Op, signature: Signature) -> bool:
        return by_rule(op, signature) and by_pin(op, signature)

    return keep


def _on_mesh(nd_sbp: NdSbp, mesh: Shape) -> NdSbp:
    """The layout as signatures write it: along an axis of one rank there is nothing to lay out."""
    return tuple(B if parts == 1 else sbp for sbp, parts in zip(nd_sbp, mesh, strict=True))


def space_log10(request: Request) -> float:
    """Decimal logarithm of the number of plans that a search chooses from: candidates times signatures of ops.

    Repeated layers are alike and count once.
    """
    sizes = []
    for config in candidates_of(request):
        space = space_of(request, config, FREE)
        options: dict[str, int] = {}
        for op in space.graph.ops:
            name = template_name(op.name, op.layer)
            if name not in options:
                kept = (space.keep(op, signature) for signature in op_signatures(space.graph, op, space.mesh))
                options[name] = sum(kept)
        sizes.append(sum(math.log10(count) for count in options.values() if count))
    largest = max(sizes, default=0.0)
    return largest + math.log10(sum(10 ** (size - largest) for size in sizes)) if sizes else 0.0
