"""Objective: the estimate of a step that the search minimises, by the schedule's own recurrence over the stages.

    objective_ns = step_ns(schedule, micro-batches, the times of every stage)

An act is priced on the rank with the largest pieces, and counts where it is (`account_of`): in every chunk of its
stage, lap and phase, or once, before the first chunk of a step or after the last. A transfer of a micro-batch is the
message from its place along the pipeline to the next. Conversions that no layer waits for (`overlapped`) count beside
the chunk where collectives run beside computation; how long it lasts then, `step_times` says. So do those that
gradients of weights cover (`covered`). What else runs beside other work counts in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from strategy.base.identity import Identity
from strategy.base.numbers import Numbers
from strategy.base.units import to_ns
from strategy.comm.hierarchical import by_node
from strategy.cost.communication import crossing_features
from strategy.cost.cost import CostModel, by_groups, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Phase
from strategy.graph.signature import Signature, piece_specs
from strategy.layout.arrangement import Action, Arrangement, Pipeline, arrange
from strategy.layout.config import PlanConfig
from strategy.layout.covered import covered_acts
from strategy.layout.layout import Layout
from strategy.layout.overlapped import is_overlapped
from strategy.layout.schedule import at_position, position_of
from strategy.layout.shared_links import message_ticks, shared_ticks
from strategy.layout.step_times import COPIED, COVERED, OVERLAPPED, WAITED, Overlap, StepTimes, no_times, step_ns
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Rate, TensorSpec

Account = tuple[str, tuple[int, ...]]
"""Where an act counts: the name of a field of `StepTimes`, and its place in that array."""

CHUNKS = {Phase.FORWARD: "forward_ns", Phase.BACKWARD: "backward_ns", Phase.WEIGHT: "weight_ns"}
"""Phase -> the field of its chunks."""


def account_of(rate: Rate, phase: Phase, stage: int, lap: int) -> Account:
    """Where an act counts that is no transfer.

    As lowering has it: what updates need comes after all chunks, and what else is done once per step before them.
    """
    if phase is Phase.UPDATE:
        return "after_ns", (stage,)
    return ("before_ns", (stage,)) if rate is Rate.STEP else (CHUNKS[phase], (stage, lap))


def op_account(pipeline: Pipeline, kind: ActKind, rate: Rate, phase: Phase, stage: int, lap: int) -> Account:
    """Where the act of an op counts: copies between a device and its host have streams of their own, beside chunks."""
    name, place = account_of(rate, phase, stage, lap)
    beside = kind is ActKind.COPY and pipeline.overlaps
    return (COPIED.get(name) or OVERLAPPED[name], (stage, lap)) if beside else (name, place)


def conversion_account(
    graph: Graph, pipeline: Pipeline, value: str, rate: Rate, phase: Phase, stage: int, lap: int
) -> Account:
    """Where a conversion on one stage counts."""
    name, place = account_of(rate, phase, stage, lap)
    beside = pipeline.overlaps and is_overlapped(graph, value, rate, phase)
    return (OVERLAPPED[name], (stage, lap)) if beside else (WAITED.get(name, name), place)


def message_account(pipeline: Pipeline, stages: int, rate: Rate, phase: Phase, stage: int, lap: int) -> Account:
    """Where a transfer counts: as the message to the next place of its pass; where there is none, with its sender.

    One that skips places counts where it leaves.
    """
    place = position_of(pipeline.schedule, stages, stage, lap)
    ahead = phase is Phase.FORWARD
    target = place + 1 if ahead else place - 1
    passes = rate is Rate.MICRO_BATCH and phase in (Phase.FORWARD, Phase.BACKWARD)
    if passes and 0 <= target < stages * pipeline.laps and at_position(pipeline.schedule, stages, target)[0] != stage:
        return ("forward_message_ns" if ahead else "backward_message_ns"), (min(place, target),)
    return account_of(rate, phase, stage, lap)


def load_features(spec: TensorSpec, layout: NdSbp, mesh: tuple[int, ...]) -> Features:
    """Features of loading a graph input."""
    return Features(ActKind.LOAD, 0, piece_specs([spec], [layout], mesh)[0].nbytes)


def action_features(
    graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel, action: Action
) -> Features:
    """What the cost model knows of an action, on the rank with the largest pieces."""
    placement = layout.stages.placements[action.stage]
    groups = cost.cluster.groups_of(placement.devices)
    if action.op:
        op = graph.by_name[action.op]
        return by_groups(op_features(graph, op, layout.signatures[op.name], placement.mesh), groups)
    written = arrangement.tensors[action.writes[0]]
    spec = graph.values[written.value].spec
    if action.step is None:
        return by_groups(load_features(spec, written.layout, placement.mesh), groups)
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
        self.groups = [cost.cluster.groups_of(placement.devices) for placement in layout.stages.placements]
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
            groups = self.groups[action.stage]
            specs = tuple([of(values[name].spec) for name in (*op.inputs, *op.outputs, *op.updates)])
            attrs, signature = tuple(op.attrs.items()), self.signatures.of(self.layout.signatures[op.name])
            counts, on_host = (len(op.inputs), len(op.outputs)), self.graph.on_host(op)
            return op.kind, counts, specs, attrs, signature, mesh, on_host, groups
        written = self.arrangement.tensors[action.writes[0]]
        spec, target = of(values[written.value].spec), self.layouts.of(written.layout)
        place = self.distance(action.stage, written.stage)
        if action.step is None:
            return spec, target, place
        source = self.layouts.of(self.arrangement.tensors[action.reads[0]].layout)
        return action.kind, action.step.axes, spec, source, target, place

    def distance(self, source: int, target: int) -> int:
        """A number for what features see of two stages, or of one: meshes, and which ranks share a node."""
        if (source, target) not in self.places:
            here, there = (self.layout.stages.placements[stage] for stage in (source, target))
            met = not set(here.devices).isdisjoint(there.devices) and source != target
            spaces = here.space, there.space
            nodes = by_node(self.cost.cluster, here, there)
            key = (here.mesh, there.mesh, spaces, nodes, source == target, (source, target) if met else ())
            self.places[source, target] = self.distances.of(key)
        return self.places[source, target]


def acts_ns(features: Sequence[Features], cost: CostModel) -> list[int]:
    """What every act takes alone; acts that are alike have the same features."""
    known: dict[Identity, int] = {}
    found = []
    for seen in features:
        key = Identity(seen)
        if key not in known:
            known[key] = to_ns(cost.seconds(seen))
        found.append(known[key])
    return found


def pipeline_of(
    config: PlanConfig, num_micro_batches: int, cost: CostModel, first_stage: Placement, crosses: Sequence[bool]
) -> Pipeline:
    """How a step of a configuration is cut and ordered, where its first stage lies there.

    `crosses`: of each stage, whether what it hands to the next goes between nodes.
    """
    return Pipeline(
        num_micro_batches,
        config.schedule,
        cost.cluster.overlaps,
        config.virtual_stages,
        config.bucket_bytes,
        config.exchange_streams,
        shared_ticks(cost, first_stage),
        message_ticks(cost, first_stage, crosses),
    )


def overlap_of(pipeline: Pipeline, cost: CostModel) -> Overlap:
    """How communication runs beside computation."""
    if not pipeline.overlaps:
        return Overlap(allowed=False)
    found = replace(Overlap.of(cost.cluster), allowed=True, shared_ticks=pipeline.shared_ticks)
    return replace(found, message_ticks=pipeline.message_ticks)


def accounts_of(graph: Graph, arrangement: Arrangement, pipeline: Pipeline, stages: int) -> list[Account]:
    """Where every action counts, in order."""
    known: dict[object, Account] = {}
    found = []
    for action in arrangement.actions:
        when = action.rate, action.phase, action.stage, action.lap
        converts = action.step is not None and action.kind is not ActKind.TRANSFER
        what = arrangement.tensors[action.writes[0]].value if converts else action.kind
        account = known.get((what, when))
        if account is None:
            if converts:
                account = conversion_account(graph, pipeline, what, *when)
            elif action.kind is ActKind.TRANSFER:
                account = message_account(pipeline, stages, *when)
            else:
                account = op_account(pipeline, action.kind, *when)
            known[what, when] = account
        found.append(account)
    return found


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

    @cached_property
    def took_ns(self) -> Sequence[int]:
        """What every action takes alone."""
        return acts_ns(self.features, self.cost)

    @cached_property
    def accounts(self) -> Sequence[Account]:
        """Where every action counts."""
        return accounts_of(self.graph, self.arrangement, self.pipeline, len(self.layout.stages.placements))

    @cached_property
    def covered_ns(self) -> Mapping[int, int]:
        """The numbers of actions that are covered -> how much of each."""
        if not self.pipeline.overlaps:
            return {}
        ranks = len(self.layout.stages.placements[0].devices)
        found = covered_acts(self.graph, self.arrangement, self.took_ns, self.cost, ranks)
        return {at: covered for at, covered in found if self.accounts[at][0] in COVERED}

    @cached_property
    def times(self) -> StepTimes:
        """What its stages do, and for how long."""
        sums: dict[Account, int] = {}
        for account, took_ns in zip(self.accounts, self.took_ns, strict=True):
            sums[account] = sums.get(account, 0) + took_ns
        for at, covered_ns in self.covered_ns.items():
            name, place = self.accounts[at]
            covered = COVERED[name], place
            sums[name, place] -= covered_ns
            sums[covered] = sums.get(covered, 0) + covered_ns
        found = no_times(len(self.layout.stages.placements), self.pipeline.laps)
        for (name, place), total_ns in sums.items():
            found[name][place] = total_ns
        return StepTimes(**found, overlap=overlap_of(self.pipeline, self.cost))

    def exchanging(self, bucket_bytes: int, streams: int) -> Priced:
        """The same with another exchange of gradients, on which nothing here depends: it is worked out no more."""
        pipeline = replace(self.pipeline, bucket_bytes=bucket_bytes, exchange_streams=streams)
        found = Priced(self.graph, self.layout, pipeline, self.cost)
        known = "arrangement", "features", "took_ns", "accounts", "covered_ns", "times"
        vars(found).update({name: getattr(self, name) for name in known})
        return found

    @property
    def objective_ns(self) -> int:
        """The objective."""
        return step_ns(self.pipeline.schedule, self.pipeline.num_micro_batches, self.times)
