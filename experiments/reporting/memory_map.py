"""Memory map: what every rank holds when it holds most, by what it is for; alike ranks, and alike tensors, together."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.explanation.simulated import SimulatedPlan
from strategy.graph.graph import Graph, Phase, Role, Value
from strategy.layout.gradient_exchange import BACKWARD as BACKWARD_PHASES
from strategy.layout.gradient_exchange import exchanged
from strategy.lowering.memory import fills
from strategy.sbp.tensor import Rate

PARAMETERS, STATE, GRADIENTS, ACTIVATIONS, BACKWARD, INPUTS, GAPS = (
    *("parameters", "optimizer state", "gradients and updates", "activations", "backward pass", "inputs"),
    "not filled",
)
"""What a tensor is for. Not filled is what a rank has set aside and no tensor takes up when it holds most."""
MOST_TENSORS = 40
"""Kinds of tensors of a rank that are named; the others are added up under what they are for."""


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What some ranks hold alike, `peak_bytes` each, and of what: (what it is for, tensors, bytes), largest first."""

    ranks: tuple[int, ...]
    stage: int
    peak_bytes: int
    tensors: tuple[tuple[str, str, int], ...]


def memory_map(one: SimulatedPlan) -> tuple[RankMemory, ...]:
    """The memory of all ranks of a plan; those together that hold alike."""
    plan, program = one.plan, one.program
    alike = program.alike or tuple(range(plan.ranks))
    shown = sorted(set(alike))
    stage_of = {device: i for i, stage in enumerate(plan.layout.stages.placements) for device in stage.devices}
    value_of = {held.name: held.value for held in plan.priced.arrangement.tensors}
    gradients = exchanged(plan.graph)
    found = []
    for rank, fill in zip(shown, fills(program, shown), strict=True):
        peak = one.found.peak_memory_bytes[rank]
        kinds: dict[tuple[str, str], list[int]] = {}
        for name, nbytes in fill.tensors:
            value = plan.graph.values.get(value_of.get(name, name))
            purpose = BACKWARD if value is None else _purpose(plan.graph, gradients, value)
            template = name if value is None else _template(plan.graph, value)
            kinds.setdefault((purpose, template), []).append(nbytes)
        tensors = [(purpose, _counted(name, len(sizes)), sum(sizes)) for (purpose, name), sizes in kinds.items()]
        gaps = [(GAPS, GAPS, peak - fill.nbytes)] if peak > fill.nbytes else []
        ranks = tuple(other for other, stands in enumerate(alike) if stands == rank)
        found.append(RankMemory(ranks, stage_of[rank], peak, _largest([*tensors, *gaps])))
    return tuple(found)


def _template(graph: Graph, value: Value) -> str:
    """What a value is called in every repeated layer."""
    if value.role is Role.VARIABLE:
        owner = graph.values[value.parameter or value.name]
        return owner.template or owner.name
    producer = graph.producer.get(value.name)
    return value.name if producer is None else graph.template_of(producer)


def _counted(name: str, count: int) -> str:
    return name if count == 1 else f"{name} ({count} tensors)"


def _purpose(graph: Graph, gradients: frozenset[str], value: Value) -> str:
    """What a value is for."""
    if value.role is Role.VARIABLE:
        return STATE if value.parameter else PARAMETERS
    producer = graph.producer.get(value.name)
    if value.role is Role.INPUT or producer is None:
        return INPUTS
    is_sum = producer.phase in BACKWARD_PHASES and value.rate is Rate.STEP
    if value.name in gradients or is_sum or producer.phase is Phase.UPDATE:
        return GRADIENTS
    if producer.parameter:  # a cast of it, or what is gathered
        return PARAMETERS
    return ACTIVATIONS if producer.phase is Phase.FORWARD else BACKWARD


def _largest(tensors: list[tuple[str, str, int]]) -> tuple[tuple[str, str, int], ...]:
    """The largest tensors by name, the others added up."""
    ordered = sorted(tensors, key=lambda one: -one[2])
    rest: dict[str, list[int]] = {}
    for purpose, _, nbytes in ordered[MOST_TENSORS:]:
        rest.setdefault(purpose, []).append(nbytes)
    added = [(purpose, f"{len(sizes)} more", sum(sizes)) for purpose, sizes in rest.items()]
    return tuple(sorted([*ordered[:MOST_TENSORS], *added], key=lambda one: -one[2]))
