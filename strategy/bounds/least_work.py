"""Least work: seconds that no choice of layouts can save, for every micro-batch and number of ranks that share it.

Every op has a part on every rank. Along the data axis samples are shared out; the other axes cut it by rows, columns,
depth or into whole products, or not at all: the cheapest way counts. What moves bytes or computes without being one
product of matrices is spread evenly. Conversions, and what has to be reduced, count nothing.

Sizes are read off the model with one and with two samples: what grows, grows with the samples.

Layers that are unlike are known one by one, and so is where they are: the schedule's own recurrence over the least
times of the stages is a bound, too, for no time of a stage can be less.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from strategy.base.units import to_ns
from strategy.bounds.least_bytes import LayerSizes, LeastBytes, sizes_of_layer
from strategy.cost.cost import CostModel, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase, act_rate
from strategy.graph.signature import op_signatures
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.arrangement import act_kind
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.convert import Converter
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Rate
from strategy.space.rules import beside_experts, following_samples
from strategy.space.short_model import LAYERS, multiplicities, places_of, shortened

LOOKED_AT = 2**14
"""Ranks among which every way to cut a product is looked at; among more, its shape is taken to lose nothing."""
LARGEST = 2**60
"""Multiply-adds of a product that is looked at so: the shape of a larger one loses next to nothing."""
PASSES = ("forward", "backward", "weight")
"""Parts of a micro-batch."""
_PARTS = (*PASSES, "step")
_SHARED_BY = ("shards", "dp", "ep")
NEGLIGIBLE = 1e-9
"""By this part every sum is lowered: far more than its floats err by."""


IntArray = npt.NDArray[np.int64]
T = TypeVar("T")
Three = tuple[float, float, float]
_Kind = tuple[Recompute, bool, Offload]
"""What is computed again, whether gradients of several micro-batches are added up, and what waits on the host."""

_Key = tuple[_Kind, int, int, int, int, int]
"""Of a configuration: that, its micro-batch, and the degrees that matter."""


@dataclass(frozen=True, slots=True)
class LeastSeconds:
    """Of a micro-batch, by pass, and of a step: ahead of all layers, in them, behind them."""

    forward_s: Three
    backward_s: Three
    weight_s: Three
    step_s: Three
    free_s: tuple[Three, Three, Three]
    """Forward, backward, gradients of weights: what of them does not follow samples along the data axis."""

    @property
    def following_s(self) -> float:
        """Of a micro-batch, what follows samples along the data axis."""
        return self.micro_batch_s - sum(map(sum, self.free_s))

    @property
    def micro_batch_s(self) -> float:
        """Of a micro-batch."""
        return sum(map(sum, (self.forward_s, self.backward_s, self.weight_s)))

    @property
    def parts_s(self) -> Three:
        """Of a micro-batch: ahead of all layers, in them, behind them."""
        ahead, within, behind = map(sum, zip(self.forward_s, self.backward_s, self.weight_s, strict=True))
        return ahead, within, behind


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """Alike ops: what one does with one sample and with two, of which pass, where, and how many there are.

    They are ahead of all layers (0), in them (1) or behind them (2); `layer` is theirs where layers may be unlike.

    What samples do not say is free to be cut in any way along the data axis, too; what is beside experts, along theirs;
    what updates state, along what ZeRO shares that out.
    """

    one: Features
    two: Features
    part: str
    place: int
    layer: int | None
    free: bool
    beside: bool
    updates: bool
    count: int

    @property
    def shared_by(self) -> str:
        """The degree of a configuration that says among how many ranks with samples of their own it is shared out.

        Empty where each of them has its own.
        """
        if self.updates:
            return "shards"
        if self.free or self.part == "step":
            return "dp"
        return "ep" if self.beside else ""

    def among(self, config: PlanConfig) -> int:
        """Ranks with samples of their own that share out what there is of it, of all their samples."""
        return getattr(config, self.shared_by) if self.shared_by else 1


@dataclass(frozen=True, slots=True, eq=False)
class EvenOp:
    """An op, and the seconds of a part of it: some whatever its size, the others shared out."""

    whole: Features
    each_s: float
    shared_s: float

    def seconds(self, parts: float) -> float:
        """Of one of so many even parts."""
        return self.each_s + self.shared_s / parts


@dataclass(slots=True)
class LeastWork:
    """What a training takes at least; what was asked for is remembered.

    Where layouts or tiles are pinned, data may lie as it never does without pins: then all is `unusual`, and free.
    """

    model: Model
    training: Training
    cost: CostModel
    unusual: bool = False
    stages_are_pinned: bool = False
    known: dict[_Key, LeastSeconds] = field(default_factory=dict)
    layers_ns: dict[_Key, IntArray] = field(default_factory=dict)
    items: dict[_Kind, tuple[_Item, ...]] = field(default_factory=dict)
    scaled: dict[tuple[_Kind, int, int], EvenOp] = field(default_factory=dict)
    least: dict[tuple[_Kind, int, int, int], float] = field(default_factory=dict)
    groups: dict[_Kind, tuple[tuple[_Item, tuple[int, ...]], ...]] = field(default_factory=dict)
    parts: dict[tuple[Features, int], float] = field(default_factory=dict)
    sizes: dict[tuple[Recompute, Offload], LayerSizes] = field(default_factory=dict)
    converters: dict[tuple[Placement, ...], Converter] = field(default_factory=dict)
    """Of meshes that were asked about."""
    exchanges: dict[tuple[Recompute, bool], Any] = field(default_factory=dict)
    """What a layer exchanges, see `least_exchange`."""
    dispatches: dict[Recompute, Any] = field(default_factory=dict)
    """What it exchanges with experts, see `least_dispatch`."""
    copies: dict[Recompute, tuple[tuple[EvenOp, EvenOp], ...]] = field(default_factory=dict)
    """What moves between a device and its host, see `least_copies`."""

    def seconds(self, config: PlanConfig) -> LeastSeconds:
        """The least seconds of the busiest rank of any stage, as if it were all stages."""
        key = key_of(config)
        if key not in self.known:
            self.find([config])
        return self.known[key]

    def find(self, configs: Iterable[PlanConfig]) -> None:
        """Find the least seconds of configurations, all at once: asked for one by one it takes long."""
        for kind, some in self._alike(config for config in configs if key_of(config) not in self.known).items():
            degrees = {name: np.array([getattr(one, name) for one in some], np.int64) for name in _SHARED_BY}
            each = np.array([(one.micro_batch, one.tp * one.cp) for one in some], np.int64)
            sums, freely = np.zeros((2, len(_PARTS), 3, len(some)))
            for first, members in self._groups_of(kind):
                shared = each * degrees[first.shared_by][:, None] if first.shared_by else each
                pairs, which = _distinct(shared)
                least = sum(self.items[kind][i].count * self._least_each(kind, i, *pairs.T) for i in members)
                seconds = np.asarray(least)[which] * (1 - NEGLIGIBLE)
                sums[_PARTS.index(first.part), first.place] += seconds
                freely[_PARTS.index(first.part), first.place] += seconds * first.free
            for config, of_parts, free in zip(some, np.moveaxis(sums, 2, 0), np.moveaxis(freely, 2, 0), strict=True):
                forward, backward, weight, step = map(_three, of_parts.tolist())
                by_pass = _three([_three(one) for one in free[: len(PASSES)].tolist()])
                self.known[key_of(config)] = LeastSeconds(forward, backward, weight, step, by_pass)

    def _alike(self, configs: Iterable[PlanConfig]) -> Mapping[_Kind, Sequence[PlanConfig]]:
        """By kind, a configuration for each of different keys."""
        found: dict[_Kind, list[PlanConfig]] = {}
        for key, config in {key_of(config): config for config in configs}.items():
            found.setdefault(key[0], []).append(config)
        return found

    def of_layers_ns(self, config: PlanConfig) -> IntArray | None:
        """(3, layers): forward, backward, gradients of weights of a micro-batch; None where layers are alike."""
        kind, samples, parts, *_ = key = key_of(config)
        items = self._items_of(kind)
        if key not in self.layers_ns and self.has_unlike_layers(config):
            found = np.zeros((3, 1 + max(item.layer for item in items if item.layer is not None)), np.int64)
            for i, item in enumerate(items):
                if item.layer is not None and item.part in PASSES:
                    among = item.among(config)
                    least_ns = max(to_ns(self._least(kind, i, samples * among, parts * among)) - 1, 0)
                    found[PASSES.index(item.part), item.layer] += item.count * least_ns
            self.layers_ns[key] = found
        return self.layers_ns.get(key)

    def has_unlike_layers(self, config: PlanConfig) -> bool:
        """Whether what layers take is told of each, for they are not alike."""
        is_short = shortened(self.model) is not None
        return not is_short and any(item.layer is not None for item in self._items_of(key_of(config)[0]))

    def look_up(self, configs: Iterable[PlanConfig]) -> None:
        """Find what the products of configurations take, all at once: asked for one by one it takes long."""
        asked = dict.fromkeys(
            (kind, members, config.micro_batch * among, config.tp * config.cp * among)
            for kind, some in self._alike(configs).items()
            for first, members in self._groups_of(kind)
            if any(self.items[kind][i].one.product is not None for i in members)
            for config in some
            for among in (first.among(config),)
        )
        wanted: dict[object, dict[tuple[Features, int], None]] = {}
        for kind, members, samples, parts in asked:
            for i in members:
                if self.items[kind][i].one.product is not None:
                    whole = self._scaled(kind, i, samples).whole
                    if self._is_looked_up(whole, parts) and (whole, parts) not in self.parts:
                        wanted.setdefault((whole.key, whole.kind, whole.half), {})[whole, parts] = None
        for alike in wanted.values():
            pieces = [-(-np.array(whole.product) // _ways(parts)) for whole, parts in alike]
            (like, _), *_ = alike
            products, which = _distinct(np.concatenate(pieces))
            seconds = self.cost.product_seconds(like, products)[which]
            starts = np.cumsum([0, *map(len, pieces[:-1])])
            self.parts.update(zip(alike, np.minimum.reduceat(seconds, starts).tolist(), strict=True))

    def bytes_of_layer(self, config: PlanConfig) -> LeastBytes:
        """What a layer leaves on its fullest rank at least."""
        key = config.recompute, config.offload
        if key not in self.sizes:
            is_short = shortened(self.model) is not None
            self.sizes[key] = sizes_of_layer(self.graph(*key)) if is_short else LayerSizes()
        return self.sizes[key].on(config, unusual=self.unusual)

    def graph(self, recompute: Recompute, offload: Offload = Offload.NONE) -> Graph:
        """Of one rank that trains alone, a short model where there is one, with one sample in each micro-batch."""
        return _alone(self.model, self.training, recompute, 1, offload=offload)

    def graphs(self, recompute: Recompute, offload: Offload = Offload.NONE) -> tuple[Graph, Graph]:
        """The same with one sample in each micro-batch, and with two."""
        one, two = (_alone(self.model, self.training, recompute, samples, offload=offload) for samples in (1, 2))
        return one, two

    def even_op(self, graph: Graph, op: Op) -> EvenOp:
        """An op of a graph without parallelism, as if it lost nothing by its shape where it is shared out."""
        return self._evenly(_whole(graph, op))

    def _scaled(self, kind: _Kind, i: int, samples: int) -> EvenOp:
        """What the i-th op does with so many samples."""
        key = kind, i, samples
        if key not in self.scaled:
            self.scaled[key] = self._evenly(_with_samples(self.items[kind][i], samples))
        return self.scaled[key]

    def _least_each(self, kind: _Kind, i: int, samples: IntArray, parts: IntArray) -> npt.NDArray[np.float64]:
        """Seconds of the cheapest part of the i-th op that ranks can be left, for each number of samples and ranks."""
        several, which = np.unique(samples, return_inverse=True)
        evens = [self._scaled(kind, i, number) for number in several.tolist()]
        each_s, shared_s = np.array([(even.each_s, even.shared_s) for even in evens])[which].T
        found: npt.NDArray[np.float64] = each_s + shared_s / parts
        if self.items[kind][i].one.product is not None:
            for row, (place, among) in enumerate(zip(which.tolist(), parts.tolist(), strict=True)):
                found[row] = self._least_of(evens[place], among)
        return found

    def _least(self, kind: _Kind, i: int, samples: int, parts: int) -> float:
        """Seconds of the cheapest part of the i-th op, with so many samples, that one of so many ranks can be left."""
        key = kind, i, samples, parts
        if key not in self.least:
            self.least[key] = self._least_of(self._scaled(kind, i, samples), parts)
        return self.least[key]

    def _least_of(self, even: EvenOp, parts: int) -> float:
        if not self._is_looked_up(even.whole, parts):
            return even.seconds(parts)
        key = even.whole, parts
        if key not in self.parts:
            pieces = -(-np.array(even.whole.product) // _ways(parts))
            self.parts[key] = float(self.cost.product_seconds(even.whole, pieces).min())
        return self.parts[key]

    def _is_looked_up(self, whole: Features, parts: int) -> bool:
        """Whether all ways to cut an op are looked at."""
        if whole.product is None or parts > LOOKED_AT or self.unusual:
            return False
        return math.prod(whole.product) <= min(LARGEST, whole.flop // 2)  # more where some groups have no row

    def _items_of(self, kind: _Kind) -> tuple[_Item, ...]:
        if kind not in self.items:
            self.items[kind] = _items(self.model, self.training, kind, unusual=self.unusual)
        return self.items[kind]

    def _groups_of(self, kind: _Kind) -> tuple[tuple[_Item, tuple[int, ...]], ...]:
        """The ops of one pass and place that are cut alike: the first of them, and the numbers of all."""
        if kind not in self.groups:
            found: dict[object, list[int]] = {}
            for i, item in enumerate(self._items_of(kind)):
                alike = item.part, item.place, item.free, item.beside, item.updates
                found.setdefault(alike, []).append(i)
            self.groups[kind] = tuple((self.items[kind][i], (i, *more)) for i, *more in found.values())
        return self.groups[kind]

    def _evenly(self, whole: Features) -> EvenOp:
        """An op whose even parts lose nothing by their shape."""
        found = self.cost.least_of(whole)
        shared_s = found.s_per_flop * whole.flop + found.s_per_byte * whole.nbytes
        return EvenOp(whole, found.fixed_s + self.cost.act_overhead_s, shared_s)


def key_of(config: PlanConfig) -> _Key:
    """What the least seconds of a configuration depend on."""
    on_host = Offload.OPTIMIZER if config.offload.of_optimizer else Offload.NONE
    kind = config.recompute, config.num_micro_batches > 1, on_host
    return kind, config.micro_batch, config.tp * config.cp, config.dp, config.ep, config.shards


def _items(model: Model, training: Training, kind: _Kind, *, unusual: bool) -> tuple[_Item, ...]:
    """The ops of a model, alike ones together, without parallelism."""
    recompute, several, offload = kind
    graphs = [_alone(model, training, recompute, samples, several=several, offload=offload) for samples in (1, 2)]
    counts = multiplicities(graphs[0], model.layers) if shortened(model) is not None else {}
    apart = weight_gradients(graphs[0])
    follow, beside = following_samples(graphs[1], 2), beside_experts(graphs[1])
    places = places_of(graphs[0])
    found: Counter[tuple[Features, Features, str, int, int | None, bool, bool, bool]] = Counter()
    for op in graphs[0].ops:
        if op.name not in graphs[1].by_name:
            continue  # what a single sample needs no sum over samples for: others have an op in its place
        if act_kind(op) is ActKind.COPY:
            continue  # it goes on beside all this (`least_copies`)
        one, two = (_whole(graph, graph.by_name[op.name]) for graph in graphs)
        part = "step"
        if act_rate(graphs[0], op) is Rate.MICRO_BATCH and op.phase is not Phase.UPDATE:
            part = "weight" if op.name in apart else "forward" if op.phase is Phase.FORWARD else "backward"
        free = unusual or op.name not in follow
        place = 1 if op.layer is not None else 2 * (places[op.name] == LAYERS - 1)
        layer = op.layer if shortened(model) is None else None
        of_state = bool(op.updates) and not unusual
        found[one, two, part, place, layer, free, op.name in beside, of_state] += counts.get(op.name, 1)
    return tuple(_Item(*key, count) for key, count in found.items())


def _alone(
    model: Model,
    training: Training,
    recompute: Recompute,
    samples: int,
    *,
    several: bool = True,
    offload: Offload = Offload.NONE,
) -> Graph:
    """The graph of one rank that trains alone, on micro-batches of so many samples, several or one of them."""
    count = 2 if several else 1
    config = PlanConfig(1, 1, 1, samples, count, Schedule.GPIPE, recompute=recompute, offload=offload)
    alone = replace(training, global_batch=count * samples, num_micro_batches=count)
    return planned_graph(shortened(model) or model, alone, config)


def _whole(graph: Graph, op: Op) -> Features:
    """Of an op on one rank."""
    (signature, *_) = op_signatures(graph, op, (1, 1))
    return op_features(graph, op, signature, (1, 1))


def _with_samples(item: _Item, samples: int) -> Features:
    """An op with so many samples."""

    def at(one: int, two: int) -> int:
        return one + (two - one) * (samples - 1)

    one, two = item.one, item.two
    product = None
    if one.product is not None and two.product is not None:
        rows, columns, depth, count = (at(a, b) for a, b in zip(one.product, two.product, strict=True))
        product = rows, columns, depth, count
    return replace(one, flop=at(one.flop, two.flop), nbytes=at(one.nbytes, two.nbytes), product=product)


@cache
def _ways(parts: int) -> IntArray:
    """Every way to cut rows, columns, depth, and how many there are, among ranks some of which may do the same.

    (ways, 4); of those that leave all ranks something of their own, and of all others too: a larger product may be
    cheaper than a smaller one.
    """
    divisors = [d for d in range(1, parts + 1) if parts % d == 0]
    products = (ways for ways in itertools.product(divisors, repeat=4) if parts % math.prod(ways) == 0)
    return np.array(list(products), np.int64)


def _three(values: Sequence[T]) -> tuple[T, T, T]:
    first, second, third = values
    return first, second, third


def _distinct(rows: IntArray) -> tuple[IntArray, npt.NDArray[np.intp]]:
    """The distinct ones of many rows, and which of them each is: by numbers of columns, sooner than as rows."""
    if len(rows) == 1:
        return rows, np.zeros(1, np.intp)
    number = np.zeros(len(rows), np.int64)
    for column in rows.T:
        values, place = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(values) + place, return_inverse=True)
    _, first, which = np.unique(number, return_index=True, return_inverse=True)
    return rows[first], which
