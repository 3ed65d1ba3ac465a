"""Quick bound: the least that a candidate can take, by its matrix products and acts, without solving anything.

Every rank runs its part of every product. Along the axes of a stage a product is cut by rows, by columns, by depth, or
not at all; of all ways to cut it, the cheapest counts. What is not one product of matrices is spread evenly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache, reduce
from operator import and_

from strategy.cost.cost import CostModel, expected, product_of
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.ops import cost_class, op_definition
from strategy.graph.ops.traits import Gemm, Operands, Product
from strategy.layout.config import Context, PlanConfig
from strategy.layout.objective import slots
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import products_flop
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.sbp.tensor import Rate
from strategy.search.candidate.candidates import Request

Size = tuple[int, int, int, int]
"""Rows, columns, depth, how many at once."""


def quick_bound_ns(request: Request, config: PlanConfig) -> int:
    """A lower bound of a step's nanoseconds."""
    cost, count = request.cost, config.num_micro_batches
    alone = replace(request.training, num_micro_batches=1)
    least = _least_work(request.model, alone, config.cp, config.context)
    once = {kind: cost.seconds(Features(kind, 0, 0)) for kind, _ in (*least.flop, *least.acts)}
    cuts = request.devices // config.pp
    per_stage = sum(times * _least_seconds(cost, item, count, cuts) for item, times in least.products) / config.pp
    others = sum(cost.seconds(Features(kind, flop, 0)) - once[kind] for kind, flop in least.flop)
    per_stage += others / request.devices / count
    fixed = sum(once[kind] * acts for kind, acts in least.acts) * (request.model.layers // config.pp)
    return int((per_stage * 0.999 + fixed) * slots(request.pipeline_of(config), config.pp) * 1e9)


@dataclass(frozen=True, slots=True)
class _Item:
    """A product on the whole batch.

    `deep`: samples are its depth, as in the gradient of a weight; else its rows. `batched`: it is many of one shape.
    """

    kind: str
    half: str
    product: Size
    deep: bool
    batched: bool


@dataclass(frozen=True, slots=True)
class _LeastWork:
    """What no layout avoids: products of a step, FLOPs of other kinds, and acts of every layer per micro-batch."""

    products: tuple[tuple[_Item, int], ...]
    flop: tuple[tuple[str, int], ...]
    acts: tuple[tuple[str, int], ...]


@lru_cache(maxsize=8)
def _least_work(model: Model, training: Training, cp: int, context: Context) -> _LeastWork:
    alone = PlanConfig(1, 1, 1, training.global_batch, 1, Schedule.GPIPE, cp=cp, context=context)
    graph = planned_graph(model, training, alone)
    kinds: dict[int, Counter[str]] = {}
    for op in graph.ops:
        if op.layer is not None and any(graph.values[name].rate is Rate.MICRO_BATCH for name in op.inputs):
            kinds.setdefault(op.layer, Counter())[op.kind] += op.phase is not Phase.UPDATE
    acts = reduce(and_, kinds.values()) if kinds else Counter()
    products = Counter(item for op in graph.ops if op.phase is not Phase.UPDATE for item in _items(graph, op))
    flop = {kind: flop for kind, flop in products_flop(graph).items() if not isinstance(cost_class(kind), Product)}
    return _LeastWork(tuple(products.items()), tuple(flop.items()), tuple(acts.items()))


def _items(graph: Graph, op: Op) -> Iterator[_Item]:
    definition = op_definition(op.kind)
    cost = definition.cost
    if not isinstance(cost, Product) or op.repeats:
        return
    read, written = expected(graph.specs(op.inputs)), expected(graph.specs(op.outputs))
    product = product_of(cost, written[0].shape, definition.flop(read, written, op.attrs))
    half = next((str(spec.dtype) for spec in read if spec.dtype.is_half), "")
    if product is not None:
        yield _Item(op.kind, half, product, deep=cost.operands is Operands.TN, batched=cost.gemm is Gemm.BATCHED)


def _least_seconds(cost: CostModel, item: _Item, micro_batches: int, cuts: int) -> float:
    """Seconds of the cheapest part of a product that one of `cuts` ranks can be left with, per micro-batch."""
    m, n, k, count = item.product
    if item.batched:  # samples are among the many; whatever is cut, no shape is known to lose less
        flop = 2 * m * n * k * count // (cuts * micro_batches)
        return _seconds(cost, item, flop, None)
    m, k = (m, -(-k // micro_batches)) if item.deep else (-(-m // micro_batches), k)
    parts = ((-(-m // a), -(-n // b), -(-k // c), count) for a, b, c in _ways(cuts))
    return min(_seconds(cost, item, 2 * m * n * k * count, (m, n, k, count)) for m, n, k, count in parts)


def _seconds(cost: CostModel, item: _Item, flop: int, product: Size | None) -> float:
    whole = Features(item.kind, flop, 0, half=item.half, product=product)
    return cost.seconds(whole) - cost.seconds(replace(whole, flop=0))


@cache
def _ways(cuts: int) -> tuple[tuple[int, int, int], ...]:
    """Every way to cut rows, columns and depth into `cuts` parts."""
    divisors = [d for d in range(1, cuts + 1) if cuts % d == 0]
    return tuple((a, b, cuts // a // b) for a in divisors for b in divisors if cuts // a % b == 0)
