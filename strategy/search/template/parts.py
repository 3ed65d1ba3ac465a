"""ModelParts: what the parts of a model take and hold; a stage is made up of them.

Read off a short model under chosen signatures. The *first* part is its first layer with all that stands ahead of the
layers, the *middle* one is any layer between, the *last* one is its last layer with all that follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from strategy.base.units import to_ns
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.layout.arrangement import Action, Arrangement, Held
from strategy.layout.layout import Layout
from strategy.layout.objective import all_features
from strategy.lowering.lifetime_peak import held_nbytes
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.search.layouts.bundles import owner_of
from strategy.search.layouts.short_model import LAYERS, places_of


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Nanoseconds and bytes of a part of a model on a stage's busiest rank.

    Attributes:
        forward_ns, backward_ns, weight_ns: of a micro-batch; gradients of weights are apart from the backward pass.
        before_ns, after_ns: of a step, ahead of its first micro-batch and behind its last one.
        static_bytes: held for the whole step.
        saved_bytes: of a micro-batch, held from its forward pass to its backward pass.
        deferred_bytes: of a micro-batch, held from its backward pass to its gradients of weights, where these wait.
        passing_bytes: the most that is held besides at any time, while it runs.
        host_bytes: held in the host's memory.
    """

    forward_ns: int = 0
    backward_ns: int = 0
    weight_ns: int = 0
    before_ns: int = 0
    after_ns: int = 0
    static_bytes: int = 0
    saved_bytes: int = 0
    deferred_bytes: int = 0
    passing_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The first layer with all ahead of it, any layer between, and the last layer with all behind it."""

    first: LayerPart
    middle: LayerPart
    last: LayerPart


def parts_of(graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel) -> ModelParts:
    """The parts of a short model that is laid out on one stage."""
    found = [_Sum() for _ in range(LAYERS)]
    at = places_of(graph)
    apart = {op.name for op in defer_weight_gradients(graph).ops if op.phase is Phase.WEIGHT}
    for action, features in zip(arrangement.actions, all_features(graph, layout, arrangement, cost), strict=True):
        op = _belongs_to(graph, arrangement, action)
        found[at[op.name]].add_time(action, to_ns(cost.seconds(features)), apart=op.name in apart)
    _hold(graph, layout, arrangement, at, found, apart)
    return ModelParts(*(each.freeze() for each in found))


class _Sum:
    """A part whose times and bytes are added one by one."""

    def __init__(self) -> None:
        self.of = {field.name: 0 for field in fields(LayerPart)}

    def add_time(self, action: Action, ns: int, *, apart: bool) -> None:
        """Add an act to the pass that it belongs to."""
        if action.phase is Phase.UPDATE:
            name = "after_ns"
        elif action.rate is Rate.STEP:
            name = "before_ns"
        elif action.phase is Phase.FORWARD:
            name = "forward_ns"
        else:
            name = "weight_ns" if apart or action.phase is Phase.WEIGHT else "backward_ns"
        self.of[name] += ns

    def add_bytes(self, name: str, nbytes: int) -> None:
        """Add what is held."""
        self.of[name] += nbytes

    def freeze(self) -> LayerPart:
        """The part."""
        return LayerPart(**self.of)


def _belongs_to(graph: Graph, arrangement: Arrangement, action: Action) -> Op:
    """The op that an act is, or that a conversion is made for."""
    if action.op:
        return graph.by_name[action.op]
    return owner_of(graph, arrangement.tensors[action.writes[0]].value)


def _hold(
    graph: Graph, layout: Layout, arrangement: Arrangement, at: Mapping[str, int], found: list[_Sum], apart: set[str]
) -> None:
    """Add what tensors hold: for the step, from pass to pass, or in passing; `apart` are the gradients of weights."""
    turn = next((i for i, op in enumerate(graph.ops) if op.phase is not Phase.FORWARD), len(graph.ops))
    rank = layout.stages.placements[0].devices[0]
    change: list[dict[int, int]] = [{} for _ in range(LAYERS)]
    for tensor in arrangement.tensors:
        value = graph.values[tensor.value]
        nbytes = held_nbytes(graph, layout.stages, tensor, rank) // tensor.lifetime.blocks
        place = at[_holder(graph, tensor).name]
        life = tensor.lifetime
        if value.space is Space.HOST:
            found[place].add_bytes("host_bytes", nbytes)
        elif value.role is Role.VARIABLE or value.rate is Rate.STEP:
            found[place].add_bytes("static_bytes", nbytes)
        elif life.begin < turn < life.end:
            found[place].add_bytes("saved_bytes", nbytes)
        else:
            if _is_deferred(graph, tensor, apart):
                found[place].add_bytes("deferred_bytes", nbytes)
            change[place][life.begin] = change[place].get(life.begin, 0) + nbytes
            change[place][life.end] = change[place].get(life.end, 0) - nbytes
    for place, events in enumerate(change):
        live = most = 0
        for time in sorted(events):
            live += events[time]
            most = max(most, live)
        found[place].add_bytes("passing_bytes", most)


def _is_deferred(graph: Graph, tensor: Held, apart: set[str]) -> bool:
    """Whether the backward pass writes a tensor that gradients of weights are made of."""
    producer = graph.producer.get(tensor.value)
    if producer is None or producer.phase is Phase.FORWARD or producer.name in apart:
        return False
    return any(reader.name in apart for reader in graph.consumers[tensor.value])


def _holder(graph: Graph, tensor: Held) -> Op:
    """The op beside which a tensor is held: who writes it, else who reads it first."""
    return graph.producer.get(tensor.value) or graph.updater.get(tensor.value) or graph.consumers[tensor.value][0]
