"""Stages of parts: the step and the memory of a pipeline whose stages are made up of parts that are laid out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.bounds.pipeline_parts import parts_at, times_of
from strategy.bounds.point import PASSES
from strategy.bounds.tied import NOT_TIED, TiedMessages
from strategy.comm.hierarchical import by_node
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.layout import Home, home_of
from strategy.layout.schedule import at_position
from strategy.layout.step_times import Overlap, StepTimes, step_ns
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Rate
from strategy.search.template.chunks_held import HELD, chunks_held
from strategy.search.template.parts import LayerPart, ModelParts
from strategy.space.short_model import LAYERS, MIDDLE
from strategy.space.space import SearchSpace

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A configuration made up of parts: the nanoseconds of a step, and bytes on the fullest rank of each stage."""

    config: PlanConfig
    step_ns: int
    peak_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...]


def pipelined(
    parts: ModelParts,
    config: PlanConfig,
    layers: int,
    between_ns: tuple[IntArray | int, IntArray | int],
    overlap: Overlap,
    tied: TiedMessages = NOT_TIED,
) -> Pipelined:
    """The step of a configuration that is made up of these parts.

    Args:
        parts: of the model on the mesh of a stage.
        config: degrees and schedule.
        layers: of the model.
        between_ns: what is handed on from every place to the next, forward and backward.
        overlap: how communication runs beside computation.
        tied: what the first and the last stage hand each other once per step.
    """
    each = (parts.first, parts.middle, parts.last)
    return made_up(each, parts_at(config, layers), config, between_ns, overlap, tied)


def made_up(
    each: Sequence[LayerPart],
    where: IntArray,
    config: PlanConfig,
    between_ns: tuple[IntArray | int, IntArray | int],
    overlap: Overlap,
    tied: TiedMessages = NOT_TIED,
) -> Pipelined:
    """The same of any parts, in their order along the layers, of which so many are `where`: (stages, laps, parts)."""
    times = times_made_up(each, where, config, between_ns, overlap, tied)
    total_ns = step_ns(config.schedule, config.num_micro_batches, times)
    device = tuple(peak_bytes(each, config, stage, laps) for stage, laps in enumerate(where))
    host = tuple(int(laps.sum(0) @ [part.host_bytes for part in each]) for laps in where)
    return Pipelined(config, total_ns, device, host)


def times_made_up(
    each: Sequence[LayerPart],
    where: IntArray,
    config: PlanConfig,
    between_ns: tuple[IntArray | int, IntArray | int],
    overlap: Overlap,
    tied: TiedMessages,
) -> StepTimes:
    """What the stages do then; of many cases, where so many parts are `where`: (cases, stages, laps, parts)."""
    times = {name: np.array([getattr(part, name) for part in each], np.int64) for name in PASSES}
    return tied.beside(times_of(where, times, between_ns, overlap), config)


def peak_bytes(parts: Sequence[LayerPart], config: PlanConfig, stage: int, laps: IntArray) -> int:
    """What a stage holds at most, during its chunks or its update; `laps`, (laps, parts), says of how many it is."""

    def of_laps(*names: str) -> IntArray:
        """(names, laps)."""
        return np.array([[getattr(part, name) for part in parts] for name in names], np.int64) @ laps.T

    held = chunks_held(config.schedule, config.pp, stage, config.num_micro_batches, config.virtual_stages)
    passes = (held * of_laps(*HELD)).sum((1, 2)).max() + of_laps("step_bytes").sum()
    passes += _passing(parts, laps.sum(0).tolist(), alone=int(held[:, 0].max()) == 1)
    return int(of_laps("static_bytes").sum() + max(passes, of_laps("update_bytes").sum()))


def _passing(parts: Sequence[LayerPart], counts: Sequence[int], *, alone: bool) -> int:
    """What is held in passing; of a micro-batch that is `alone` on its stage, but for what is not saved then.

    While a part runs, nothing of those behind it is saved: not yet, or no more.
    """
    behind, most = 0, 0
    for part, count in zip(reversed(parts), reversed(counts), strict=True):
        if count:
            most = max(most, part.passing_bytes - alone * behind)
        behind += count * (part.saved_bytes + part.waiting_bytes)
    return most


Messages = Mapping[tuple[int, int], tuple[int, int]]
"""From one stage to another: the nanoseconds of what is handed on, forward and backward."""


def between_places(messages: Messages, config: PlanConfig) -> tuple[IntArray, IntArray]:
    """(places - 1,) forward and backward, of the messages between stages."""
    places = config.pp * config.virtual_stages
    stages = [at_position(config.schedule, config.pp, place)[0] for place in range(places)]
    found = [messages.get(pair, (0, 0)) for pair in itertools.pairwise(stages)]
    ahead, back = np.array(found, np.int64).reshape(-1, 2).T
    return ahead, back


def stage_messages(
    space: SearchSpace,
    signatures: Mapping[str, Signature],
    cost: CostModel,
    placements: Sequence[Placement],
) -> Messages:
    """Between all stages that follow one another under some schedule; what shares nodes alike takes as long.

    Args:
        space: of the short model on one stage.
        signatures: of its ops.
        cost: prices of conversions.
        placements: of the stages.
    """
    stages, known = range(len(placements)), dict[object, tuple[int, int]]()
    found = {}
    for here, there in (*itertools.pairwise(stages), *itertools.pairwise(reversed(stages)), (stages[-1], 0)):
        pair = placements[here], placements[there]
        key = by_node(cost.cluster, *pair)
        if here != there:
            if key not in known:
                known[key] = messages_ns(space, signatures, Converter(cost, pair))
            found[here, there] = known[key]
    return found


def messages_ns(space: SearchSpace, signatures: Mapping[str, Signature], converter: Converter) -> tuple[int, int]:
    """What it takes to hand on between two stages, forward and backward.

    Args:
        space: of the short model on one stage.
        signatures: of its ops.
        converter: of these stages.
    """
    forward = _crossing_ns(space, signatures, converter, 0, 1)
    return forward, _crossing_ns(space, signatures, converter, LAYERS - 1, 0)


def _crossing_ns(
    space: SearchSpace, signatures: Mapping[str, Signature], converter: Converter, layer: int, stage: int
) -> int:
    """Of all that a layer hands to the middle one, on its way to a stage."""
    graph, total = space.graph, 0.0
    for name, op in graph.producer.items():
        if op.layer != layer or graph.values[name].rate is not Rate.MICRO_BATCH:
            continue
        home = home_of(graph, space.stages, signatures, name)
        if home is None:
            continue
        for layout in _wanted(graph, signatures, name):
            source = Home(1 - stage, home.layout)
            total += sum(converter.prices_ns(graph.values[name].spec, source, stage, layout))
    return int(total)


def _wanted(graph: Graph, signatures: Mapping[str, Signature], value: str) -> list[NdSbp]:
    """The layouts in which the middle layer reads a value."""
    found = (
        layout
        for op in graph.consumers[value]
        if op.layer == MIDDLE
        for name, layout in zip(op.inputs, signatures[op.name].inputs, strict=True)
        if name == value
    )
    return list(dict.fromkeys(found))
