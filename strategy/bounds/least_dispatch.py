"""Least dispatch: what rows take at least on their way to experts that are shared out, and back.

Along the axis of experts an op is laid out in one of two ways: what multiplies with weights of experts by expert, what
is not beside them by sample, and what hands rows on between the two in either way. A value that is written in one way
and read in the other is exchanged, for no less than under the cheapest layouts along the other axes:

    by sample                    by expert
    tokens -> dispatch ->|-> rows -> products      or tokens are gathered, and dispatched by expert
    tokens <- combine  <-|<- rows <- products      or rows are combined by expert, and their sums reduced

So a layer exchanges no less than a minimum cut between what is by sample and what is by expert, with an arc for each
value and way (Ford and Fulkerson 1956, Maximal flow through a network).
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from strategy.bounds.least_exchange import converter_of
from strategy.bounds.least_work import LeastWork
from strategy.bounds.one_mesh import without_data_axis
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.graph.experts import products_of_experts
from strategy.graph.graph import Graph, Op
from strategy.graph.signature import Listings
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.covered import covering_products, products_ns
from strategy.sbp.sbp import B, NdSbp, Partial, Reduce, Sbp, Split, is_legal_layout, may_be_partial
from strategy.sbp.tensor import Rate, TensorSpec
from strategy.space.rules import beside_experts, following_experts, following_samples, staying_with_experts
from strategy.space.short_model import MIDDLE

RANKS = 2
"""Among so many it is told what follows samples and what follows experts; among more ops have no further ways."""
MOST_UNITS = 2**30
"""Of all capacities together: flows are found in 32 bits."""
BY_SAMPLE, BY_EXPERT = 0, 1
"""The numbers of what is always one of the two: the ends of the cut."""


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """A value of a layer that is exchanged where its writer is laid out in one way and any of its readers in the other.

    Attributes:
        one, two: its spec with one sample and with two.
        source: how it is written, along axes of samples and along that of experts.
        targets: how it is read, the same of every reader.
        writer, readers: the numbers of these ops, each once.
        to_experts: whether it goes from what is by sample to what is by expert; else back.
        products: that cover it, whole, with one sample and with two (`layout.covered`).
    """

    one: TensorSpec
    two: TensorSpec
    source: tuple[Sbp, Sbp]
    targets: tuple[tuple[Sbp, Sbp], ...]
    writer: int
    readers: tuple[int, ...]
    to_experts: bool
    products: tuple[tuple[Features, Features], ...] = ()

    def spec(self, samples: int) -> TensorSpec:
        """With so many samples."""
        shape = tuple(a + (b - a) * (samples - 1) for a, b in zip(self.one.shape, self.two.shape, strict=True))
        ragged = self.one.ragged
        return replace(self.one, shape=shape, ragged=None if ragged is None else replace(ragged, dims=shape[:-1]))

    def covers_ns(self, samples: int, cost: CostModel, ranks: int) -> int:
        """For how long it is covered with so many samples."""
        whole = [replace(one, flop=one.flop + (two.flop - one.flop) * (samples - 1)) for one, two in self.products]
        return products_ns(whole, cost, ranks)


@dataclass(slots=True)
class _Ways:
    """How the ops of a short model may be laid out along an axis of experts."""

    graph: Graph
    samples: Mapping[str, Mapping[str, Sbp]] = field(init=False)
    experts: Mapping[str, Mapping[str, Sbp]] = field(init=False)
    products: frozenset[str] = field(init=False)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of what is laid out in either way."""

    def __post_init__(self) -> None:
        graph = self.graph
        self.samples, self.products = following_samples(graph, RANKS), products_of_experts(graph)
        beside, known, listings = beside_experts(graph), following_experts(graph, RANKS), Listings(graph, (RANKS,))
        by_expert = [graph.by_name[name] for name in beside if name in known and name in self.samples]
        self.experts = {op.name: known[op.name] for op in by_expert if self._has_two_ways(op, known[op.name], listings)}
        self.samples = {name: sbps for name, sbps in self.samples.items() if name not in beside or name in self.experts}

    def _has_two_ways(self, op: Op, by_expert: Mapping[str, Sbp], listings: Listings) -> bool:
        """Whether an op is all by sample or all by expert: what its values may be one by one allows nothing else."""
        names, by_sample = (*op.inputs, *op.outputs), self.samples[op.name]
        ways = [tuple(way[name] for name in names) for way in (by_expert, by_sample)]
        every = (tuple(nd[0] for nd in (*one.inputs, *one.outputs)) for one in listings.of(op))
        return all(sbps in ways for sbps in every if all(map(operator.contains, zip(*ways, strict=True), sbps)))

    def number(self, op: Op) -> int:
        if op.name in self.products:
            return BY_EXPERT
        if self.experts.get(op.name, self.samples[op.name]) == self.samples[op.name]:
            return BY_SAMPLE
        return self.numbers.setdefault(op.name, 2 + len(self.numbers))

    def source(self, op: Op, name: str, *, by_expert: bool) -> tuple[Sbp, Sbp]:
        """How a value lies, along axes of samples and along that of experts, where an op reads or writes it."""
        return self.samples[op.name][name], (self.experts if by_expert else self.samples)[op.name][name]


def exchanged_with_experts(one: Graph, two: Graph) -> tuple[ExpertExchange, ...]:
    """What a layer may exchange in a micro-batch: the middle one of a short model, with one sample and with two."""
    ways, staying, each = _Ways(two), staying_with_experts(two), [covering_products(graph) for graph in (one, two)]
    found = []
    for name, value in two.values.items():
        writer = two.producer.get(name)
        if writer is None or writer.name not in ways.samples or value.rate is not Rate.MICRO_BATCH or name in staying:
            continue
        every = [op for op in two.consumers[name] if op.layer == MIDDLE and op.name in ways.samples]
        for to_experts, end in ((True, BY_EXPERT), (False, BY_SAMPLE)):
            readers = [op for op in every if ways.number(op) != 1 - end]
            if ways.number(writer) == end or not readers:
                continue
            found.append(
                ExpertExchange(
                    one.values[name].spec,
                    value.spec,
                    ways.source(writer, name, by_expert=not to_experts),
                    tuple(dict.fromkeys(ways.source(op, name, by_expert=to_experts) for op in readers)),
                    ways.number(writer),
                    tuple(dict.fromkeys(map(ways.number, readers))),
                    to_experts,
                    tuple(zip(*(products.get(name, ()) for products in each), strict=True)),
                )
            )
    return tuple(found)


def least_dispatch_ns(work: LeastWork, config: PlanConfig) -> int:
    """Of a layer, in a micro-batch, beside what gradients of weights may cover; of a context axis nothing is said.

    Where links inside of nodes are the faster ones, no data axis makes it less.
    """
    if config.ep == 1 or config.cp > 1 or work.unusual:
        return 0
    config = without_data_axis(config) if work.cost.is_faster_inside() and not config.strides else config
    if config.recompute not in work.dispatches:
        work.dispatches[config.recompute] = exchanged_with_experts(*work.graphs(config.recompute))
    known: tuple[ExpertExchange, ...] = work.dispatches[config.recompute]
    converter, samples = converter_of(work, config), config.micro_batch * config.dp
    ranks, costs_ns = math.prod(config.mesh), list[float]()
    for each in known:
        covers = each.covers_ns(samples, work.cost, ranks) if work.cost.cluster.overlaps else 0
        costs_ns.append(max(_least_ns(converter, config, each, each.spec(samples)) - covers, 0.0))
    return least_cut_ns(known, costs_ns)


def least_cut_ns(values: Sequence[ExpertExchange], costs_ns: Sequence[float]) -> int:
    """What is exchanged at least, however ops are laid out that may be in either way; rounded down."""
    unit_ns = max(1, math.ceil(sum(costs_ns) / MOST_UNITS))
    ops = 2 + max((number for each in values for number in (each.writer, *each.readers)), default=0)
    arcs: list[tuple[int, int, int]] = []
    for at, (each, ns) in enumerate(zip(values, costs_ns, strict=True), start=ops):
        first, *others = (each.writer, at), *((at, reader) for reader in each.readers)
        for (source, target), units in ((first, int(ns / unit_ns)), *((arc, MOST_UNITS) for arc in others)):
            arcs.append((source, target, units) if each.to_experts else (target, source, units))
    if not arcs:
        return 0
    sources, targets, units = np.array(arcs, np.int32).T
    size = ops + len(values)
    network = csr_array((units, (sources, targets)), shape=(size, size))
    return int(maximum_flow(network, BY_SAMPLE, BY_EXPERT).flow_value) * unit_ns


def _least_ns(converter: Converter, config: PlanConfig, each: ExpertExchange, spec: TensorSpec) -> float:
    """Of one exchange under the cheapest layouts along a tensor axis."""
    sources = list(_laid_out(config, spec, each.source, tuple(Reduce)))
    targets = [nd for target in each.targets for nd in _laid_out(config, spec, target, (Reduce.SUM,))]
    if not sources or not targets:
        return 0.0
    least = float(converter.all_prices_ns(spec, 0, sources, 0, targets).sum(0).min())
    return least if math.isfinite(least) else 0.0


def _laid_out(
    config: PlanConfig, spec: TensorSpec, along: tuple[Sbp, Sbp], reduces: Sequence[Reduce]
) -> Iterator[NdSbp]:
    """All legal layouts that are so along axes of samples and that of experts."""
    terms = (Partial(reduce) for reduce in reduces if may_be_partial(spec, reduce))
    free: list[Sbp] = [B, *(Split(dim) for dim in range(len(spec.shape))), *terms]
    of_sample, of_expert = along
    axes: list[list[Sbp]] = []
    for name, parts in zip(config.axes, config.mesh, strict=True):
        ruled = free if name == "tensor" else [of_expert if name == "expert" else of_sample]
        axes.append(ruled if parts > 1 else [B])
    return (nd_sbp for nd_sbp in itertools.product(*axes) if is_legal_layout(spec.shape, nd_sbp, config.mesh))
