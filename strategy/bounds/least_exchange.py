"""Least exchange: what a layer's parameters and gradients take at least on their way where the data axis shares them.

Under stage 3 of ZeRO every parameter that samples are multiplied with is gathered along the data axis for each pass of
each micro-batch, and under stages 2 and 3 the gradients of every micro-batch are reduced to their parts. What groups of
ranks add up between them, they do once per step. However the
other axes cut a tensor, that takes no less than the cheapest of these ways. Where experts are shared out there are two
axes of samples, along which all else is exchanged; what experts have stays split by expert along one of these, and is
exchanged along the others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strategy.bounds.crossings import crossings_of
from strategy.bounds.least_work import LeastWork
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.layout import Home
from strategy.passes.zero_layouts import BY_EXPERT, is_shared, persistent, shared_dim
from strategy.program.program import ActKind
from strategy.sbp.sbp import B, NdSbp, P, Sbp, Split, is_legal_layout
from strategy.sbp.tensor import Rate, Shape, TensorSpec
from strategy.space.axis_orders import placements_of, ranks_of
from strategy.space.rules import beside_experts, following_samples, staying_with_experts
from strategy.space.short_model import MIDDLE

ROUNDED = 2.0
"""Nanoseconds by which prices of a few steps, each in whole ones, are less than in proportion to their bytes."""


@dataclass(frozen=True, slots=True)
class LayerExchange:
    """What a layer exchanges in a micro-batch: parameters, once for every pass that reads them, and gradients.

    `added` are the sums over micro-batches of what is `reduced`, by the ops that `adding` names. `of_experts` is what
    stays with experts that are shared out.
    """

    gathered: tuple[TensorSpec, ...]
    reduced: tuple[TensorSpec, ...]
    added: tuple[TensorSpec, ...]
    adding: tuple[tuple[str, ...], ...]
    of_experts: LayerExchange | None = None


def exchanged(graph: Graph, following: Container[str], *, by_expert: bool) -> LayerExchange:
    """Of the middle layer of a short model that is not parallel yet.

    Args:
        graph: of the model.
        following: ops whose samples are split along the data axis; the others may have all of them on every rank.
        by_expert: whether experts will be shared out.
    """
    if not by_expert:
        return _exchanged_by(graph, following, lambda op, name: True)
    beside, staying = beside_experts(graph), staying_with_experts(graph)
    of_experts = _exchanged_by(graph, following, lambda op, name: op.name in beside and name in staying)
    return replace(_exchanged_by(graph, following, lambda op, name: op.name not in beside), of_experts=of_experts)


def _exchanged_by(graph: Graph, following: Container[str], counts: Callable[[Op, str], bool]) -> LayerExchange:
    """Of those parameters that ops read, and gradients that they make, of which (op, value) counts.

    What is made of parameters once per step is whole where ZeRO does not share it out, and codes may be made of whole
    ones, where their blocks are no parts.
    """
    shared = {name for name in persistent(graph, frozen=True) if not _has_codes(graph, name)}
    gathered, reduced, added, adding = [], [], [], []
    for name, value in graph.values.items():
        producer = graph.producer.get(name)
        if value.rate is Rate.STEP and not (producer is not None and producer.phase is Phase.UPDATE):
            readers = [
                op
                for op in graph.consumers[name]
                if op.layer == MIDDLE
                and op.name in following
                and name in shared
                and counts(op, name)
                and any(graph.values[other].rate is Rate.MICRO_BATCH for other in op.inputs)
            ]
            gathered += [_smallest(graph, name)] * len({op.phase is Phase.FORWARD for op in readers})
        if producer is None or producer.layer != MIDDLE or value.rate is not Rate.MICRO_BATCH:
            continue
        sums = [
            (op, out)
            for op in graph.consumers[name]
            for out in op.outputs
            if act_rate(graph, op) is Rate.MICRO_BATCH and graph.values[out].rate is Rate.STEP
        ]
        if sums and _maker(graph, name) in following and counts(producer, name):
            (op, out), *_ = sums
            reduced.append(_smallest(graph, name))
            added.append(_smallest_later(graph, out))
            adding.append((*(cast.name for cast in _casts(graph, name)), op.name))
    return LayerExchange(tuple(gathered), tuple(reduced), tuple(added), tuple(adding))


def _smallest(graph: Graph, name: str) -> TensorSpec:
    """The spec of fewest bytes in which a value may travel: its own, or that of what it is cast from."""
    sources = (graph.values[cast.inputs[0]].spec for cast in _casts(graph, name))
    return min((graph.values[name].spec, *sources), key=lambda spec: spec.nbytes)


def _casts(graph: Graph, name: str) -> Iterator[Op]:
    """What a value was made by, one after another, of something of the same shape."""
    shape, producer = graph.values[name].spec.shape, graph.producer.get(name)
    while producer is not None and len(producer.inputs) == 1:
        if graph.values[producer.inputs[0]].spec.shape != shape:
            return
        yield producer
        producer = graph.producer.get(producer.inputs[0])


def _maker(graph: Graph, name: str) -> str:
    """The op that makes a value, or what it is cast from."""
    *_, made = (name, *(cast.inputs[0] for cast in _casts(graph, name)))
    producer = graph.producer.get(made)
    return producer.name if producer is not None else ""


def _has_codes(graph: Graph, name: str) -> bool:
    """Whether a value is one of several that an op makes of another, as codes are beside their scales."""
    return name in graph.producer and len(graph.producer[name].outputs) > 1


def _smallest_later(graph: Graph, name: str) -> TensorSpec:
    """The spec of fewest bytes in which a sum may travel: its own, or that of what it is cast to."""
    shape = graph.values[name].spec.shape
    casts = (op.outputs[0] for op in graph.consumers[name] if len(op.inputs) == len(op.outputs) == 1)
    alike = (graph.values[out].spec for out in casts if graph.values[out].spec.shape == shape)
    return min((graph.values[name].spec, *alike), key=lambda spec: spec.nbytes)


def exchange_of_layer(work: LeastWork, config: PlanConfig) -> LayerExchange:
    """What a layer of a configuration exchanges; remembered."""
    key = config.recompute, config.ep > 1
    if key not in work.exchanges:
        one, two = work.graphs(config.recompute)
        work.exchanges[key] = exchanged(one, following_samples(two, 2), by_expert=config.ep > 1)
    found: LayerExchange = work.exchanges[key]
    return found


def converter_of(work: LeastWork, config: PlanConfig) -> Converter:
    """Of the first stage's mesh; prices are remembered."""
    placements = placements_of(config)[:1]
    if placements not in work.converters:
        work.converters[placements] = Converter(work.cost, placements)
    return work.converters[placements]


def least_exchange_ns(work: LeastWork, config: PlanConfig) -> int:
    """Of a layer, in a micro-batch."""
    if config.dp == 1 or config.zero_stage < 2 or work.unusual:
        return 0
    known, converter = exchange_of_layer(work, config), converter_of(work, config)
    gathers, everywhere = known.gathered if config.zero_stage == 3 else (), _choices(config)[-1]
    total = sum(_least_ns(converter, config, spec, everywhere, gathers=True) for spec in gathers)
    total += sum(_least_ns(converter, config, spec, everywhere) for spec in known.reduced)
    if known.of_experts is not None and (among := _between_experts(config)):
        experts, again = known.of_experts, config.zero_stage == 3
        for spec in experts.gathered if again else ():
            total += _least_of_experts_ns(converter, config, spec, among, gathers=True)
        total += sum(_least_of_experts_ns(converter, config, spec, among) for spec in experts.reduced)
    return int(total * (1 - 1e-9))


def _between_experts(config: PlanConfig) -> tuple[int, ...]:
    """The axes along which what experts have is shared out beside that of experts."""
    expert = config.axes.index("expert")
    return tuple(axis for axis in config.shard_axes if config.mesh[axis] > 1 and axis != expert)


def _least_of_experts_ns(
    converter: Converter, config: PlanConfig, spec: TensorSpec, split: Sequence[int], *, gathers: bool = False
) -> float:
    """As `_least_ns`, of what stays split by expert along the axis of experts."""
    dims, ranks = range(BY_EXPERT.dim + 1, len(spec.shape)), math.prod(config.mesh[axis] for axis in split)
    if any(shared_dim(spec.shape, config, among={dim}, of=ranks) is None for dim in dims):
        return 0.0  # perhaps it is not shared out
    expert, several = config.axes.index("expert"), [axis for axis in config.replica_axes if config.mesh[axis] > 1]
    splits = [Split(dim) for dim in dims]
    along: list[list[Sbp]] = [
        [BY_EXPERT] if axis == expert else [*splits] if axis in split else [B if gathers or axis not in several else P]
        for axis in config.replica_axes
    ]
    ends = [
        (tuple((B if gathers else P) if axis in split else sbp for axis, sbp in enumerate(parts)), parts)
        for parts in itertools.product(*along)
    ]
    found = _least_between_ns(converter, config, spec, ends, gathers=gathers)
    return found if math.isfinite(found) else 0.0


@dataclass(frozen=True, slots=True)
class LeastStepExchange:
    """What a layer's parameters and gradients take at least on their way once per step.

    Attributes:
        ns: of both; a rounded price is no more than a nanosecond off.
        reduced_ns: of gradients alone, which are not there ahead of the first micro-batch.
        often: gradients that are exchanged as they arise, in fewer bytes than their sums, stand for so much of it for
            every nanosecond that this takes in a micro-batch.
    """

    ns: int = 0
    reduced_ns: int = 0
    often: float = 1.0


def least_step_exchange(work: LeastWork, config: PlanConfig) -> LeastStepExchange:
    """Of a layer's parameters, once per step, where they are whole along the axes of samples while samples pass.

    Gradients are terms then: they are added up on every rank, or to parts, and the parts of what is updated by them
    are gathered. What is exchanged in every micro-batch and what is left for the end are one way from terms to parts:
    prices are concave in bytes, so that the first takes no less than for all bytes of a sum, divided by how many times
    as many these are.
    """
    if config.dp == 1 or config.zero_stage >= 2 or config.zero_owner or work.unusual:
        return LeastStepExchange()
    known, converter = exchange_of_layer(work, config), converter_of(work, config)
    smallest: dict[Shape, TensorSpec] = {}
    for spec in known.gathered:
        smallest[spec.shape] = min(smallest.get(spec.shape, spec), spec, key=lambda one: one.nbytes)
    total, alone, often = 0.0, 0.0, 1.0
    for once, several in zip(known.reduced, known.added, strict=True):
        spec = several if config.num_micro_batches * once.nbytes >= several.nbytes else once
        gathered, ways = smallest.get(spec.shape), list[tuple[float, float]]()
        for split in _choices(config):
            reduced = _least_ns(converter, config, spec, split, to_all=True)
            back = 0.0 if gathered is None else _least_ns(converter, config, gathered, split, gathers=True)
            ways.append((reduced, reduced + back))
        reduced, both = (max(min(each) - ROUNDED, 0.0) for each in zip(*ways, strict=True))
        total, alone, often = total + both, alone + reduced, max(often, spec.nbytes / once.nbytes)
    return LeastStepExchange(int(total * (1 - 1e-9)), int(alone * (1 - 1e-9)), often)


@dataclass(frozen=True, slots=True)
class LeastAdding:
    """What it takes to add up a layer's gradients over micro-batches.

    A rank adds up all that it has made, and holds as much; or what is left to it once these are reduced to parts along
    the data axis, in every micro-batch, beside what it computes.

    Attributes:
        ns: of a micro-batch, for adding up all more than parts.
        overlapped_per_ns: of these, so many are saved at most by a nanosecond of reducing.
        least_ns: of adding up more or of reducing, whichever takes less.
        nbytes: of all sums.
        ns_per_byte: that a micro-batch takes more at least for each byte less that is held.
    """

    ns: float
    overlapped_per_ns: float
    least_ns: float
    nbytes: float
    ns_per_byte: float


def least_adding(work: LeastWork, config: PlanConfig) -> LeastAdding | None:
    """Of a layer; None where nothing is added up, or is reduced first in any case."""
    if config.dp == 1 or config.num_micro_batches == 1 or config.zero_stage >= 2 or config.zero_owner or work.unusual:
        return None
    graph, parts = work.graph(config.recompute), config.tp * config.cp
    known, converter = exchange_of_layer(work, config), converter_of(work, config)
    whole_ns, total, nbytes, rates, saved = 0.0, 0.0, 0.0, [math.inf], [0.0]
    for reduced, added, names in zip(known.reduced, known.added, known.adding, strict=True):
        ops = [graph.by_name[name] for name in names]

        def adding_ns(among: int, ops: Sequence[Op] = ops) -> float:
            return sum(work.even_op(graph, op).seconds(among) for op in ops) * 1e9

        parts_ns, all_ns = adding_ns(parts * config.dp), adding_ns(parts)
        more_ns, ways = max(all_ns - parts_ns, 0.0), list[tuple[float, float]]()
        for split in _choices(config)[1:]:
            among = math.prod(config.mesh[axis] for axis in split)
            reduced_ns, left_ns = _least_ns(converter, config, reduced, split), adding_ns(parts * among)
            less_ns = max(all_ns - left_ns, 0.0)
            saved.append(less_ns / reduced_ns if reduced_ns else math.inf)
            ways.append((max(left_ns - parts_ns, 0.0) + reduced_ns, added.nbytes / parts * (1 - 1 / among)))
        least_ns = min(more_ns, *(takes_ns for takes_ns, _ in ways))
        whole_ns, total, nbytes = whole_ns + more_ns, total + least_ns, nbytes + added.nbytes / parts
        rates += [(takes_ns - least_ns) / less for takes_ns, less in ways]
    rate = min(rates)
    if not math.isfinite(max(saved)):
        whole_ns, saved = 0.0, [0.0]
    shy = 1 - 1e-9
    return LeastAdding(whole_ns * shy, max(saved), total * shy, nbytes, rate if math.isfinite(rate) else 0.0)


def least_messages_ns(work: LeastWork, config: PlanConfig) -> tuple[int, int]:
    """Of what a layer hands on to the next, from stage to stage, near and far: an even part, in one message."""
    if config.pp == 1 or work.unusual:
        return 0, 0
    handed_on = handed_on_by_layer(work.graph(config.recompute))
    nbytes = handed_on.nbytes if handed_on is not None else 0
    each = nbytes * config.micro_batch // (config.tp * config.cp)
    intra_ns, inter_ns = (
        int(1e9 * work.cost.seconds(Features(ActKind.TRANSFER, 0, each, 1, level))) for level in ("intra", "inter")
    )
    cluster, far = work.cost.cluster, crossings_of(work.cost.cluster, config).far
    nodes = ranks_of(config).reshape(config.pp, -1) // cluster.devices_per_node

    def least_ns(here: int, there: int) -> int:
        if np.intersect1d(nodes[here], nodes[there]).size == 0:
            return inter_ns
        return intra_ns if len(np.union1d(nodes[here], nodes[there])) == 1 else min(intra_ns, inter_ns)

    return least_ns(0, 1), 0 if far is None else least_ns(*far)


def handed_on_by_layer(graph: Graph) -> TensorSpec | None:
    """The largest value that a layer of a short model hands on to the next, of a micro-batch."""
    found = (
        value.spec
        for name, value in graph.values.items()
        if value.rate is Rate.MICRO_BATCH
        and value.role is Role.COMPUTED
        and graph.producer[name].layer == MIDDLE
        and graph.producer[name].phase is Phase.FORWARD
        and any(op.layer == MIDDLE + 1 and op.phase is Phase.FORWARD for op in graph.consumers[name])
    )
    return max(found, key=lambda spec: spec.nbytes, default=None)


def _choices(config: PlanConfig) -> list[tuple[int, ...]]:
    """None of the axes along which is shared, or all that have several ranks: they are taken as one."""
    axes = tuple(axis for axis in config.shard_axes if config.mesh[axis] > 1)
    return [(), axes] if axes else [()]


def _least_ns(
    converter: Converter,
    config: PlanConfig,
    spec: TensorSpec,
    split: Sequence[int],
    *,
    gathers: bool = False,
    to_all: bool = False,
) -> float:
    """Nanoseconds from terms to parts along some axes of samples, the least over all else that layouts may be.

    Args:
        converter: of the mesh.
        config: whose mesh it is.
        spec: of the tensor.
        split: the axes along which there are parts.
        gathers: from parts to the whole instead.
        to_all: along other axes of samples terms are added up for all ranks; else they stay terms.
    """
    if not is_shared(spec.shape, config) and config.zero_stage:
        return 0.0
    splits = [Split(dim) for dim in range(len(spec.shape))]
    several = [axis for axis in config.replica_axes if config.mesh[axis] > 1]
    whole: NdSbp = tuple(B if gathers or axis not in several else P for axis in config.replica_axes)
    others = B if gathers or to_all else P
    along = [splits if axis in split else [others if axis in several else B] for axis in config.replica_axes]
    ends = [(whole, parts) for parts in itertools.product(*along)]
    found = _least_between_ns(converter, config, spec, ends, gathers=gathers)
    return found if math.isfinite(found) or config.zero_stage == 0 else 0.0


def _least_between_ns(
    converter: Converter, config: PlanConfig, spec: TensorSpec, ends: Iterable[tuple[NdSbp, NdSbp]], *, gathers: bool
) -> float:
    """The least over (whole or terms, parts) along the axes of samples and all layouts along the others, if any."""
    found = math.inf
    for (whole, parts), beside in itertools.product(ends, _layouts(spec, config.mesh[len(config.replica_axes) :])):
        both = (*whole, *beside), (*parts, *beside)
        if all(is_legal_layout(spec.shape, end, config.mesh) for end in both):
            source, target = reversed(both) if gathers else both
            found = min(found, sum(converter.prices_ns(spec, Home(0, source), 0, target)))
    return found


def _layouts(spec: TensorSpec, mesh: Shape) -> Iterator[tuple[Sbp, ...]]:
    """Whole or split, along every other axis."""
    splits = [Split(dim) for dim in range(len(spec.shape))]
    each: list[list[Sbp]] = [[B, *splits] if parts > 1 else [B] for parts in mesh]
    return itertools.product(*each)
