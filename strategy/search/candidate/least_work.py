"""Least work: seconds that no choice of layouts can save, for every micro-batch and number of ranks that share it.

Every op has a part on every rank. Along the data axis samples are shared out; the other axes cut it by rows, columns,
depth or into whole products, or not at all: the cheapest way counts. What moves bytes or computes without being one
product of matrices is spread evenly. Conversions, and what has to be reduced, count nothing.

Sizes are read off the model with one and with two samples: what grows, grows with the samples.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from strategy.base.units import to_ns
from strategy.cost.cost import CostModel, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase, act_rate
from strategy.graph.signature import op_signatures
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.makespan_bound import makespan_bound_ns
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.search.layouts.rules import beside_experts
from strategy.search.layouts.short_model import multiplicities, shortened

LOOKED_AT = 16
"""Ranks among which every way to cut a product is looked at; among more, its shape is taken to lose nothing."""
LARGEST = 2**46
"""Multiply-adds of a product that is looked at so: the shape of a larger one loses next to nothing."""
OUTSIDE = "outside"
"""Name of the sum over what is no layer's."""
NEGLIGIBLE = 1e-9
"""By this part every sum is lowered: far more than its floats err by."""


_Kind = tuple[Recompute, bool]
"""What is computed again, and whether gradients of several micro-batches are added up."""


@dataclass(frozen=True, slots=True)
class LeastSeconds:
    """Of one micro-batch over all layers: forward, backward, gradients of weights; and of a step."""

    forward_s: float
    backward_s: float
    weight_s: float
    step_s: float
    outside_s: float
    """Of a micro-batch, what is no layer's: it is in the others, and on the first and the last stage alone."""


@dataclass(frozen=True, slots=True, eq=False)
class _Item:
    """Alike ops: what one does with one sample and with two, of which pass, where, and how many there are.

    What is outside of layers or beside experts is free to be cut in any way along the data axis, too.
    """

    one: Features
    two: Features
    part: str
    outside: bool
    free: bool
    count: int


@dataclass(slots=True)
class LeastWork:
    """What a training takes at least; what was asked for is remembered.

    Where layouts or tiles are pinned, data may lie as it never does without pins: then all is `unusual`, and free.
    """

    model: Model
    training: Training
    cost: CostModel
    unusual: bool = False
    known: dict[tuple[_Kind, int, int, int], LeastSeconds] = field(default_factory=dict)
    items: dict[_Kind, tuple[_Item, ...]] = field(default_factory=dict)
    scaled: dict[tuple[_Kind, int], tuple[Features, ...]] = field(default_factory=dict)
    least: dict[tuple[Features, int], float] = field(default_factory=dict)
    saved: dict[Recompute, int] = field(default_factory=dict)

    def seconds(self, config: PlanConfig) -> LeastSeconds:
        """The least seconds of the busiest rank of any stage, as if it were all stages."""
        kind, samples, parts = (
            (config.recompute, config.num_micro_batches > 1),
            config.micro_batch,
            config.tp * config.cp,
        )
        key = kind, samples, parts, config.dp
        if key not in self.known:
            if kind not in self.items:
                self.items[kind] = _items(self.model, self.training, kind, unusual=self.unusual)
            sums = dict.fromkeys(("forward", "backward", "weight", "step", OUTSIDE), 0.0)
            few, many = self._scaled(kind, samples), self._scaled(kind, samples * config.dp)
            for item, own, whole in zip(self.items[kind], few, many, strict=True):
                among_all = item.free or item.part == "step"
                seconds = item.count * self._least(*((whole, parts * config.dp) if among_all else (own, parts)))
                sums[item.part] += seconds
                sums[OUTSIDE] += seconds * (item.outside and item.part != "step")
            self.known[key] = LeastSeconds(*(total * (1 - NEGLIGIBLE) for total in sums.values()))
        return self.known[key]

    def saved_bytes(self, recompute: Recompute) -> int:
        """What one sample's forward pass leaves for its backward pass, in all layers and unsplit."""
        if recompute not in self.saved:
            self.saved[recompute] = _saved_bytes(self.model, self.training, recompute)
        return self.saved[recompute]

    def _scaled(self, kind: _Kind, samples: int) -> tuple[Features, ...]:
        """What ops do with so many samples."""
        key = kind, samples
        if key not in self.scaled:
            self.scaled[key] = tuple(_with_samples(item, samples) for item in self.items[kind])
        return self.scaled[key]

    def _least(self, whole: Features, parts: int) -> float:
        """Seconds of the cheapest part of an op that one of so many ranks can be left with."""
        key = whole, parts
        if key not in self.least:
            few = parts <= LOOKED_AT and not self.unusual
            if whole.product is not None and few and math.prod(whole.product) <= LARGEST:
                pieces = -(-np.array(whole.product) // _ways(parts))
                self.least[key] = float(self.cost.product_seconds(whole, pieces).min())
            else:
                self.least[key] = self._evenly(whole, parts)
        return self.least[key]

    def _evenly(self, whole: Features, parts: int) -> float:
        """Seconds of an even part that loses nothing by its shape."""
        found = self.cost.coefficients_of(replace(whole, product=None))
        each = (found.s_per_flop * whole.flop + found.s_per_byte * whole.nbytes) / parts
        return found.fixed_s + each + self.cost.act_overhead_s


def _items(model: Model, training: Training, kind: _Kind, *, unusual: bool) -> tuple[_Item, ...]:
    """The ops of a model, alike ones together, without parallelism."""
    graphs = [_alone(model, training, kind, samples) for samples in (1, 2)]
    counts = multiplicities(graphs[0], model.layers) if shortened(model) is not None else {}
    apart = {op.name for op in defer_weight_gradients(graphs[0]).ops if op.phase is Phase.WEIGHT}
    beside = beside_experts(graphs[0])
    found: Counter[tuple[Features, Features, str, bool, bool]] = Counter()
    for op in graphs[0].ops:
        one, two = (_whole(graph, graph.by_name[op.name]) for graph in graphs)
        part = "step"
        if act_rate(graphs[0], op) is Rate.MICRO_BATCH and op.phase is not Phase.UPDATE:
            part = "weight" if op.name in apart else "forward" if op.phase is Phase.FORWARD else "backward"
        free = unusual or op.layer is None or op.name in beside
        found[one, two, part, op.layer is None, free] += counts.get(op.name, 1)
    return tuple(_Item(*key, count) for key, count in found.items())


def _saved_bytes(model: Model, training: Training, recompute: Recompute) -> int:
    """Of what layers write forth and read back; the rest of a model is left out."""
    graph = _alone(model, training, (recompute, True), 1)
    counts = multiplicities(graph, model.layers) if shortened(model) is not None else {}
    total = 0
    for op in graph.ops:
        if op.phase is Phase.FORWARD and op.layer is not None:
            for name in op.outputs:
                value = graph.values[name]
                back = any(reader.phase is not Phase.FORWARD for reader in graph.consumers[name])
                if back and value.rate is Rate.MICRO_BATCH and value.space is Space.DEVICE:
                    total += value.spec.expected.nbytes * counts.get(op.name, 1)
    return total


def _alone(model: Model, training: Training, kind: _Kind, samples: int) -> Graph:
    """The graph of one rank that trains alone, on micro-batches of so many samples."""
    recompute, several = kind
    count = 2 if several else 1
    config = PlanConfig(1, 1, 1, samples, count, Schedule.GPIPE, recompute=recompute)
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
def _ways(parts: int) -> npt.NDArray[np.int64]:
    """Every way to cut rows, columns, depth, and how many there are, among ranks some of which may do the same.

    (ways, 4); of those that leave all ranks something of their own, and of all others too: a larger product may be
    cheaper than a smaller one.
    """
    divisors = [d for d in range(1, parts + 1) if parts % d == 0]
    products = (ways for ways in itertools.product(divisors, repeat=4) if parts % math.prod(ways) == 0)
    return np.array(list(products), np.int64)


def least_steps_ns(work: LeastWork, configs: Sequence[PlanConfig]) -> list[int]:
    """What a step of each configuration takes at least."""
    least = [work.seconds(config) for config in configs]
    totals = [
        [max(to_ns(s) - 1, 0) for s in (one.forward_s, one.backward_s, one.weight_s, one.step_s)] for one in least
    ]
    forward, backward, weight, step = np.array(totals, np.int64).reshape(-1, 4).T
    shapes = np.array([(c.pp, c.num_micro_batches, c.virtual_stages) for c in configs], np.int64).reshape(-1, 3)
    found = np.zeros(len(configs), np.int64)
    schedules = np.array([c.schedule for c in configs])
    for schedule in dict.fromkeys(c.schedule for c in configs):
        rows = np.flatnonzero(schedules == schedule)
        stages, count, laps = shapes[rows].T
        found[rows] = makespan_bound_ns(
            schedule,
            stages,
            count,
            laps,
            forward_ns=forward[rows],
            backward_ns=backward[rows],
            weight_ns=weight[rows],
            step_ns=step[rows],
        )
    return [int(bound) for bound in found]
