"""Galvatron-like: a strategy for every layer, by dynamic programming over layers and memory.

Source: Galvatron (Miao et al. 2022, VLDB, arXiv:2211.13878), with the choice of recomputing and 1F1B of Galvatron-BMW.
For every number of stages of equal layers and devices, and every number of micro-batches, each stage's layers choose
among the leaves of the decision trees: data x tensor degrees, data parallelism replicated (ZeRO 0) or sharded (ZeRO 3),
recomputed or not; where neighbours differ in degrees, the residual stream is laid out anew between them.

    least[l, s, e] = time of layer l under s + min over s' of (least[l - 1, s', e - bytes of l under s] + from s' to s)

Not there: stages of unlike numbers of layers (BMW's bi-objective balance), other schedules than 1F1B. Bytes that are
held in passing belong to no layer: what exceeds the limit for them by the estimate is planned again with less.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import numpy as np

from experiments.bench.baselines.pipelines import FoundPipeline, LayerRun, busy_ns, held_bytes, once_ns, priced
from experiments.bench.baselines.pricing import LayerPricing, Strategy, StrategyPrices
from experiments.bench.baselines.uniform import strategies
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule
from strategy.search.template.parts import LayerPart
from strategy.space.candidates import divisors

LEVELS = 128
"""Into which the memory of a rank is cut."""
TRIES = 3
"""So often memory is planned with less where an answer did not fit."""

Leaf = tuple[Strategy, StrategyPrices]


def galvatron(pricing: LayerPricing) -> FoundPipeline | None:
    """The fastest pipeline found; None where none fits."""
    best: FoundPipeline | None = None
    for (count, samples), depth in product(pricing.counts(), divisors(pricing.request.devices)):
        if depth > pricing.layers:
            continue
        leaves = leaves_of(pricing, pricing.request.devices // depth, samples, count, (0, 3))
        if pricing.is_over():
            return best and FoundPipeline(best.step_ns, best.peak_bytes, best.what, "out of time")
        least_ns = min((busy_ns(prices.parts.middle) for _, prices in leaves), default=0)
        if not leaves or (best is not None and count * least_ns * pricing.layers // depth >= best.step_ns):
            continue
        limit_bytes = pricing.limit_bytes
        for _ in range(TRIES):
            stages = _planned(pricing, leaves, depth, samples, count, limit_bytes)
            if stages is None:
                break
            step_ns, peak = priced(pricing, stages, samples, count)
            if peak <= pricing.limit_bytes:
                if best is None or step_ns < best.step_ns:
                    best = FoundPipeline(step_ns, peak, _words(stages, count))
                break
            limit_bytes -= peak - pricing.limit_bytes
    return best


def leaves_of(pricing: LayerPricing, ranks: int, samples: int, count: int, zero_stages: tuple[int, ...]) -> list[Leaf]:
    """The strategies that there are on so many ranks."""
    found = ((each, pricing.prices(each, samples, count)) for each in strategies(pricing, ranks, zero_stages))
    return [(strategy, prices) for strategy, prices in found if prices is not None]


def _planned(
    pricing: LayerPricing, leaves: Sequence[Leaf], depth: int, samples: int, count: int, limit_bytes: int
) -> list[list[LayerRun]] | None:
    """The stages, each planned alone."""
    runs = layer_runs(pricing.layers, Schedule.ONE_F_ONE_B, depth, 1)
    between_ns = np.array([[_between_ns(pricing, a, b, samples, count) for b, _ in leaves] for a, _ in leaves])
    stages, known = [], {}
    for at, run in enumerate(runs):
        in_flight = min(depth - at, count)
        key = (run, in_flight, at == 0, at == depth - 1)
        if key not in known:
            known[key] = _stage(leaves, between_ns * count, key, count, limit_bytes)
        chosen = known[key]
        if chosen is None:
            return None
        stages.append(_runs(leaves, chosen, has_first=at == 0, has_last=at == depth - 1))
    return stages


def _between_ns(pricing: LayerPricing, before: Strategy, after: Strategy, samples: int, count: int) -> int:
    """Of a micro-batch, both ways."""
    if (before.dp, before.tp) == (after.dp, after.tp):
        return 0
    return sum(pricing.crossing_ns(*pair, samples, count, apart=False) for pair in ((before, after), (after, before)))


def _stage(
    leaves: Sequence[Leaf],
    between_ns: np.ndarray[tuple[int, int], np.dtype[np.int64]],
    key: tuple[int, int, bool, bool],
    count: int,
    limit_bytes: int,
) -> list[int] | None:
    """Layer -> the leaf that it takes; None where nothing fits."""
    run, in_flight, has_first, has_last = key
    least = np.zeros((len(leaves), LEVELS + 1))
    before = []
    for layer in range(run):
        parts = [_part(prices, layer == 0 and has_first, layer == run - 1 and has_last) for _, prices in leaves]
        times = [count * busy_ns(part) + once_ns(part) for part in parts]
        levels = [-(-held_bytes(part, in_flight) * LEVELS // max(limit_bytes, 1)) for part in parts]
        if layer == 0:
            arrived, origin = least, np.zeros(least.shape, np.int64)
        else:
            ways = least[:, None, :] + between_ns[:, :, None]
            origin, arrived = ways.argmin(0), ways.min(0)
        now = np.full(least.shape, np.inf)
        came = np.zeros(least.shape, np.int64)
        for leaf, (time_ns, level) in enumerate(zip(times, levels, strict=True)):
            if level <= LEVELS:
                now[leaf, level:] = arrived[leaf, : LEVELS + 1 - level] + time_ns
                came[leaf, level:] = origin[leaf, : LEVELS + 1 - level]
        before.append((came, levels))
        least = now
    leaf, left = int(least[:, LEVELS].argmin()), LEVELS
    if not np.isfinite(least[leaf, LEVELS]):
        return None
    chosen = []
    for came, levels in reversed(before):
        chosen.append(leaf)
        leaf, left = int(came[leaf, left]), left - levels[leaf]
    return chosen[::-1]


def _part(prices: StrategyPrices, is_first: bool, is_last: bool) -> LayerPart:
    return prices.parts.first if is_first else prices.parts.last if is_last else prices.parts.middle


def _runs(leaves: Sequence[Leaf], chosen: Sequence[int], *, has_first: bool, has_last: bool) -> list[LayerRun]:
    """Neighbours with one strategy, together."""
    cuts = [0, *(at for at in range(1, len(chosen)) if chosen[at] != chosen[at - 1]), len(chosen)]
    return [
        LayerRun(
            *leaves[chosen[begin]],
            end - begin,
            has_first=has_first and begin == 0,
            has_last=has_last and end == cuts[-1],
        )
        for begin, end in pairwise(cuts)
    ]


def _words(stages: Sequence[Sequence[LayerRun]], count: int) -> str:
    kinds = dict.fromkeys(str(layers.strategy) for stage in stages for layers in stage)
    return f"pp {len(stages)}, {count} micro-batches, {'; '.join(kinds)}"
