"""Objective: the linear estimate of a step that the search minimises.

    stage_ns = (micro-batches + bubble) * (its micro-batch acts) + (its step acts)
    objective_ns = the largest stage_ns

The bubble is stages - 1 under GPipe and 1F1B, and a part of that under others (`BUBBLE_PARTS`), rounded up.

An act is priced on the rank with the largest pieces; a transfer counts on the stage that sends. What runs beside
other work counts in full: the simulator knows about overlap, the objective does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from strategy.base.numbers import Numbers
from strategy.base.units import to_ns
from strategy.comm.hierarchical import by_node
from strategy.cost.cost import CostModel, crossing_features, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph
from strategy.graph.signature import Signature, piece_specs
from strategy.layout.arrangement import Action, Arrangement, Pipeline, arrange
from strategy.layout.layout import Layout
from strategy.layout.schedule import Schedule
from strategy.program.program import ActKind
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Rate, TensorSpec

BUBBLE_PARTS = {Schedule.ZB_H1: 3, Schedule.ZBV: 6}
"""Into how many parts a schedule cuts 1F1B's bubble; interleaved, as many as there are laps.

ZB-H1's is (p - 1)(F + B - W) (Qi et al. 2024, table 2) and ZBV's the start alone, (p - 1) F / 2, which are these parts
where the three passes take equally long.
"""


def rate_weight(rate: Rate, pipeline: Pipeline, stages: int) -> int:
    """How many times an act counts: once per step, or once per micro-batch slot of the pipeline."""
    return 1 if rate is Rate.STEP else slots(pipeline, stages)


def slots(pipeline: Pipeline, stages: int) -> int:
    """Micro-batches that the time of a step would do for, the bubble counted as such."""
    parts = BUBBLE_PARTS.get(pipeline.schedule, pipeline.laps)
    return pipeline.num_micro_batches + -(-(stages - 1) // parts)


def load_features(spec: TensorSpec, layout: NdSbp, mesh: tuple[int, ...]) -> Features:
    """Features of loading a graph input."""
    return Features(ActKind.LOAD, 0, piece_specs([spec], [layout], mesh)[0].nbytes)


def action_features(
    graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel, action: Action
) -> Features:
    """What the cost model knows of an action, on the rank with the largest pieces."""
    placement = layout.stages.placements[action.stage]
    if action.op:
        op = graph.by_name[action.op]
        return op_features(graph, op, layout.signatures[op.name], placement.mesh)
    written = arrangement.tensors[action.writes[0]]
    spec = graph.values[written.value].spec
    if action.step is None:
        return load_features(spec, written.layout, placement.mesh)
    source = arrangement.tensors[action.reads[0]]
    if action.kind is ActKind.TRANSFER:
        receiver = layout.stages.placements[written.stage]
        return crossing_features(cost.cluster, spec, source.layout, placement, written.layout, receiver)
    return cost.step_features(spec, source.layout, action.step, placement)


def all_features(graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel) -> list[Features]:
    """What the cost model knows of every action, in order; actions that are alike have the same object."""
    alike = _Alike(graph, layout, arrangement, cost)
    known: dict[object, Features] = {}
    found = []
    for action in arrangement.actions:
        key = alike.key(action)
        if key not in known:
            known[key] = action_features(graph, layout, arrangement, cost, action)
        found.append(known[key])
    return found


class _Alike:
    """Keys of actions: those of equal ones have equal features."""

    def __init__(self, graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel) -> None:
        self.graph, self.layout, self.arrangement, self.cost = graph, layout, arrangement, cost
        self.places: dict[tuple[int, int], int] = {}
        self.distances: Numbers[tuple[object, ...]] = Numbers()
        self.specs: Numbers[TensorSpec] = Numbers()
        self.layouts: Numbers[NdSbp] = Numbers()
        self.signatures: Numbers[Signature] = Numbers()

    def key(self, action: Action) -> object:
        """What `action_features` looks at."""
        values, of = self.graph.values, self.specs.of
        if action.op:
            op, mesh = self.graph.by_name[action.op], self.layout.stages.placements[action.stage].mesh
            specs = tuple([of(values[name].spec) for name in (*op.inputs, *op.outputs, *op.updates)])
            attrs, signature = tuple(op.attrs.items()), self.signatures.of(self.layout.signatures[op.name])
            return op.kind, len(op.inputs), len(op.outputs), specs, attrs, signature, mesh, self.graph.on_host(op)
        written = self.arrangement.tensors[action.writes[0]]
        spec, target = of(values[written.value].spec), self.layouts.of(written.layout)
        place = self.place(action.stage, written.stage)
        if action.step is None:
            return spec, target, place
        source = self.layouts.of(self.arrangement.tensors[action.reads[0]].layout)
        return action.kind, action.step.axes, spec, source, target, place

    def place(self, source: int, target: int) -> int:
        """A number for what features see of two stages, or of one: meshes, and which ranks share a node."""
        if (source, target) not in self.places:
            here, there = (self.layout.stages.placements[stage] for stage in (source, target))
            met = not set(here.devices).isdisjoint(there.devices) and source != target
            spaces = here.space, there.space
            nodes = by_node(self.cost.cluster, here, there)
            key = (here.mesh, there.mesh, spaces, nodes, source == target, (source, target) if met else ())
            self.places[source, target] = self.distances.of(key)
        return self.places[source, target]


def stage_times_ns(
    graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel, pipeline: Pipeline
) -> tuple[int, ...]:
    """The objective's time of every stage."""
    features = all_features(graph, layout, arrangement, cost)
    return _stage_times_ns(arrangement, features, cost, pipeline, len(layout.stages.placements))


def _stage_times_ns(
    arrangement: Arrangement, features: Sequence[Features], cost: CostModel, pipeline: Pipeline, stages: int
) -> tuple[int, ...]:
    totals = [0] * stages
    known: dict[int, int] = {}
    """By the identity of features, which all actions that are alike share."""
    weights = {rate: rate_weight(rate, pipeline, stages) for rate in Rate}
    for action, found in zip(arrangement.actions, features, strict=True):
        if id(found) not in known:
            known[id(found)] = to_ns(cost.seconds(found))
        totals[action.stage] += weights[action.rate] * known[id(found)]
    return tuple(totals)


@dataclass(frozen=True)
class Priced:
    """A laid-out graph with what follows from its prices; worked out once, for all who want it."""

    graph: Graph
    layout: Layout
    pipeline: Pipeline
    cost: CostModel

    @cached_property
    def arrangement(self) -> Arrangement:
        """All tensors and all actions."""
        return arrange(self.graph, self.layout, self.pipeline)

    @cached_property
    def features(self) -> Sequence[Features]:
        """What the cost model knows of every action, in order."""
        return all_features(self.graph, self.layout, self.arrangement, self.cost)

    @property
    def stage_times_ns(self) -> tuple[int, ...]:
        """The objective's time of every stage."""
        count = len(self.layout.stages.placements)
        return _stage_times_ns(self.arrangement, self.features, self.cost, self.pipeline, count)
