"""Stages of parts: the times and the memory of a pipeline whose stages are runs of alike layers.

    place 0    head, its layers        place i    its layers        last place    its layers, tail

Places are the virtual stages along the pipeline, with layers in equal runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategy.graph.graph import Graph, Phase
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.in_flight import Leg, unit_run
from strategy.layout.layout import Home, home_of
from strategy.layout.makespan import PipelineTimes, makespan_ns
from strategy.layout.schedule import position_of
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Rate
from strategy.search.layouts.short_model import LAYERS, MIDDLE
from strategy.search.layouts.space import SearchSpace
from strategy.search.template.parts import ModelParts


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A configuration made up of parts: the nanoseconds of a step, and bytes on the fullest rank of each stage."""

    config: PlanConfig
    step_ns: int
    peak_bytes: tuple[int, ...]
    host_bytes: tuple[int, ...]


def pipelined(
    parts: ModelParts, config: PlanConfig, layers: int, between_ns: tuple[int, int], *, overlaps: bool
) -> Pipelined:
    """The step of a configuration whose layers, head and tail are these parts.

    Args:
        parts: of the model on the mesh of a stage.
        config: degrees and schedule.
        layers: of the model.
        between_ns: what is handed on between two stages, forward and backward.
        overlaps: whether messages travel beside computation.
    """
    stages, laps = config.pp, config.virtual_stages
    places = stages * laps
    run_of = np.bincount(np.arange(layers) * places // layers, minlength=places)
    run = unit_run(config.schedule, stages, config.num_micro_batches, laps)
    passes = np.zeros((3, stages, laps), np.int64)
    before, after = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    peaks, host = [], []
    for stage in range(stages):
        held = passing = on_host = 0
        for lap in range(laps):
            place = position_of(config.schedule, stages, stage, lap)
            here = [(parts.layer, int(run_of[place]))]
            here += [(parts.head, 1)] if place == 0 else []
            here += [(parts.tail, 1)] if place == places - 1 else []
            passes[:, stage, lap] = [sum(n * getattr(p, name) for p, n in here) for name in _PASSES]
            before[stage] += sum(n * part.before_ns for part, n in here)
            after[stage] += sum(n * part.after_ns for part, n in here)
            read = Leg(Phase.WEIGHT if config.schedule.splits_backward else Phase.BACKWARD, stage, lap)
            blocks = run.in_flight(Leg(Phase.FORWARD, stage, lap), [read])
            held += sum(n * (part.static_bytes + blocks * part.saved_bytes) for part, n in here)
            if config.schedule.splits_backward:
                waiting = run.in_flight(Leg(Phase.BACKWARD, stage, lap), [read])
                held += waiting * sum(n * part.deferred_bytes for part, n in here)
            passing = max(passing, sum(part.passing_bytes for part, _ in here))
            on_host += sum(n * part.host_bytes for part, n in here)
        peaks.append(held + passing)
        host.append(on_host)
    times = PipelineTimes(
        forward_ns=np.maximum(passes[0], 0),
        backward_ns=np.maximum(passes[1], 0),
        weight_ns=np.maximum(passes[2], 0),
        forward_message_ns=np.full(places - 1, between_ns[0], np.int64),
        backward_message_ns=np.full(places - 1, between_ns[1], np.int64),
        before_ns=np.maximum(before, 0),
        after_ns=np.maximum(after, 0),
        overlaps=overlaps,
    )
    step_ns = makespan_ns(config.schedule, config.num_micro_batches, times)
    return Pipelined(config, step_ns, tuple(peaks), tuple(host))


_PASSES = ("forward_ns", "backward_ns", "weight_ns")


def messages_ns(space: SearchSpace, signatures: Mapping[str, Signature], converter: Converter) -> tuple[int, int]:
    """What it takes to hand on between the first two stages of a pipeline, forward and backward.

    Args:
        space: of the short model on one stage.
        signatures: of its ops.
        converter: of the pipeline.
    """
    if len(converter.placements) == 1:
        return 0, 0
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
