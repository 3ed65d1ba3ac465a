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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from strategy.cost.cost import CostModel, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase, act_rate
from strategy.graph.signature import op_signatures
from strategy.layout.config import Context, Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.search.template.short_model import multiplicities, shortened

LOOKED_AT = 16
"""Ranks among which every way to cut a product is looked at; among more, its shape is taken to lose nothing."""
LARGEST = 2**46
"""Multiply-adds of a product that is looked at so: the shape of a larger one loses next to nothing."""
OUTSIDE = "outside"
NEGLIGIBLE = 1e-9
"""By this part every sum is lowered: far more than its floats err by."""


@dataclass(frozen=True, slots=True)
class LeastSeconds:
    """Of one micro-batch over all layers: forward, backward, gradients of weights; and of a step."""

    forward_s: float
    backward_s: float
    weight_s: float
    step_s: float

    @property
    def micro_batch_s(self) -> float:
        """All that a micro-batch takes."""
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class _Item:
    """Alike ops: what one does with one sample and with two, of which pass, whether outside of layers, how many."""

    one: Features
    two: Features
    part: str
    outside: bool
    count: int


@dataclass(slots=True)
class LeastWork:
    """What a training takes at least; what was asked for is remembered."""

    model: Model
    training: Training
    cost: CostModel
    known: dict[tuple[Recompute, int, int], Mapping[str, float]] = field(default_factory=dict)
    items: dict[Recompute, tuple[_Item, ...]] = field(default_factory=dict)
    least: dict[tuple[Features, int], float] = field(default_factory=dict)
    saved: dict[Recompute, int] = field(default_factory=dict)

    def seconds(self, recompute: Recompute, samples: int, parts: int, replicas: int) -> LeastSeconds:
        """The least seconds of the busiest rank.

        Args:
            recompute: which activations are computed again.
            samples: of a micro-batch on one rank of the data axis.
            parts: ranks that share the work on them.
            replicas: ranks of the data axis, which can share what is done once per step.
        """
        found, shared = self._sums(recompute, samples, parts), self._sums(recompute, 0, parts * replicas)
        return LeastSeconds(found["forward"], found["backward"], found["weight"], shared["step"])

    def outside_s(self, recompute: Recompute, samples: int, parts: int) -> float:
        """Seconds of a micro-batch that are no layer's: those of the first and the last stage alone."""
        return self._sums(recompute, samples, parts)[OUTSIDE]

    def saved_bytes(self, recompute: Recompute) -> int:
        """What one sample's forward pass leaves for its backward pass, in all layers and unsplit."""
        if recompute not in self.saved:
            self.saved[recompute] = _saved_bytes(self.model, self.training, recompute)
        return self.saved[recompute]

    def _sums(self, recompute: Recompute, samples: int, parts: int) -> Mapping[str, float]:
        """Seconds by pass; without samples, of what is done once per step."""
        key = recompute, samples, parts
        if key not in self.known:
            if recompute not in self.items:
                self.items[recompute] = _items(self.model, self.training, recompute)
            sums = dict.fromkeys(("forward", "backward", "weight", "step", OUTSIDE), 0.0)
            for item in self.items[recompute]:
                if (item.part == "step") is (samples == 0):
                    seconds = item.count * self._least(_scaled(item, max(samples, 1)), parts)
                    sums[item.part] += seconds
                    sums[OUTSIDE] += seconds * item.outside
            self.known[key] = {part: total * (1 - NEGLIGIBLE) for part, total in sums.items()}
        return self.known[key]

    def _least(self, whole: Features, parts: int) -> float:
        """Seconds of the cheapest part of an op that one of so many ranks can be left with."""
        key = whole, parts
        if key not in self.least:
            if whole.product is not None and parts <= LOOKED_AT and math.prod(whole.product) <= LARGEST:
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


def _items(model: Model, training: Training, recompute: Recompute) -> tuple[_Item, ...]:
    """The ops of a model, alike ones together, without parallelism."""
    graphs = [_alone(model, training, recompute, samples) for samples in (1, 2)]
    short = shortened(model)
    counts = multiplicities(graphs[0], model.layers) if short is not None else {}
    apart = {op.name for op in defer_weight_gradients(graphs[0]).ops if op.phase is Phase.WEIGHT}
    found: Counter[tuple[Features, Features, str, bool]] = Counter()
    for op in graphs[0].ops:
        one, two = (_whole(graph, graph.by_name[op.name]) for graph in graphs)
        part = "step"
        if act_rate(graphs[0], op) is Rate.MICRO_BATCH:
            part = "weight" if op.name in apart else "forward" if op.phase is Phase.FORWARD else "backward"
        found[one, two, part, op.layer is None] += counts.get(op.name, 1)
    return tuple(_Item(*key, count) for key, count in found.items())


def _saved_bytes(model: Model, training: Training, recompute: Recompute) -> int:
    """Of what layers write forth and read back; the rest of a model is left out."""
    graph = _alone(model, training, recompute, 1)
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


def _alone(model: Model, training: Training, recompute: Recompute, samples: int) -> Graph:
    config = PlanConfig(1, 1, 1, samples, 2, Schedule.GPIPE, recompute=recompute, offload=Offload.NONE)
    alone = replace(training, global_batch=2 * samples, num_micro_batches=2)
    return planned_graph(shortened(model) or model, alone, replace(config, context=Context.RING))


def _whole(graph: Graph, op: Op) -> Features:
    """Of an op on one rank."""
    (signature, *_) = op_signatures(graph, op, (1, 1))
    return op_features(graph, op, signature, (1, 1))


def _scaled(item: _Item, samples: int) -> Features:
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
