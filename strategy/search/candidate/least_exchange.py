"""Least exchange: what a layer's parameters and gradients take at least on their way where the data axis shares them.

Under stage 3 of ZeRO every parameter that samples are multiplied with is gathered along the data axis for each pass of
each micro-batch, and under stages 2 and 3 the gradients of every micro-batch are reduced to their parts. However the
other axes cut a tensor, that takes no less than the cheapest of these ways.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from strategy.graph.graph import Graph, Phase, act_rate
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.layout import Home
from strategy.passes.zero_layouts import is_shared
from strategy.sbp.sbp import B, NdSbp, P, Sbp, Split, is_legal_layout
from strategy.sbp.tensor import Rate, Shape, TensorSpec
from strategy.search.candidate.candidates import Request, placements_of
from strategy.search.candidate.least_work import LeastWork
from strategy.search.layouts.rules import beside_experts
from strategy.search.layouts.short_model import MIDDLE


@dataclass(frozen=True, slots=True)
class LayerExchange:
    """What a layer exchanges in a micro-batch: parameters, once for every pass that reads them, and gradients."""

    gathered: tuple[TensorSpec, ...]
    reduced: tuple[TensorSpec, ...]


def exchanged(graph: Graph) -> LayerExchange:
    """Of the middle layer of a short model that is not parallel yet."""
    beside = beside_experts(graph)
    gathered, reduced = [], []
    for name, value in graph.values.items():
        producer = graph.producer.get(name)
        if value.rate is Rate.STEP and not (producer is not None and producer.phase is Phase.UPDATE):
            readers = [
                op
                for op in graph.consumers[name]
                if op.layer == MIDDLE
                and op.name not in beside
                and any(graph.values[other].rate is Rate.MICRO_BATCH for other in op.inputs)
            ]
            gathered += [_smallest(graph, name)] * len({op.phase is Phase.FORWARD for op in readers})
        if producer is None or producer.layer != MIDDLE or value.rate is not Rate.MICRO_BATCH:
            continue
        adds_up = any(
            act_rate(graph, op) is Rate.MICRO_BATCH and any(graph.values[out].rate is Rate.STEP for out in op.outputs)
            for op in graph.consumers[name]
        )
        if adds_up and producer.name not in beside:
            reduced.append(_smallest(graph, name))
    return LayerExchange(tuple(gathered), tuple(reduced))


def _smallest(graph: Graph, name: str) -> TensorSpec:
    """The spec of fewest bytes in which a value may travel: its own, or that of what it is cast from."""
    found = graph.values[name].spec
    producer = graph.producer.get(name)
    while producer is not None and len(producer.inputs) == 1:
        before = graph.values[producer.inputs[0]].spec
        if before.shape != found.shape:
            break
        found = min(found, before, key=lambda spec: spec.nbytes)
        producer = graph.producer.get(producer.inputs[0])
    return found


def least_exchange_ns(request: Request, work: LeastWork, config: PlanConfig) -> int:
    """Of all layers, in a micro-batch."""
    if config.dp == 1 or config.zero_stage < 2 or work.unusual:
        return 0
    known = exchanged(work.graph(config.recompute))
    converter = Converter(request.cost, placements_of(config)[:1])
    gathers = known.gathered if config.zero_stage == 3 else ()
    total = sum(_least_ns(converter, config, spec, shared_first=True) for spec in gathers)
    total += sum(_least_ns(converter, config, spec, shared_first=False) for spec in known.reduced)
    return request.model.layers * int(total * (1 - 1e-9))


def _least_ns(converter: Converter, config: PlanConfig, spec: TensorSpec, *, shared_first: bool) -> float:
    """Nanoseconds from parts to the whole or, of terms, to parts; the least over all layouts on the other axes."""
    if not is_shared(spec.shape, config):
        return 0.0
    whole: Sbp = B if shared_first else P
    found = math.inf
    for dim, beside in itertools.product(range(len(spec.shape)), _layouts(spec, config.mesh[1:])):
        parts: NdSbp = (Split(dim), *beside)
        if not is_legal_layout(spec.shape, parts, config.mesh):
            continue
        ends: tuple[NdSbp, NdSbp] = (parts, (whole, *beside)) if shared_first else ((whole, *beside), parts)
        found = min(found, sum(converter.prices_ns(spec, Home(0, ends[0]), 0, ends[1])))
    return found if math.isfinite(found) else 0.0


def _layouts(spec: TensorSpec, mesh: Shape) -> Iterator[tuple[Sbp, ...]]:
    """Whole or split, along every other axis."""
    splits = [Split(dim) for dim in range(len(spec.shape))]
    each: list[list[Sbp]] = [[B, *splits] if parts > 1 else [B] for parts in mesh]
    return itertools.product(*each)
