"""Mist-like: the best stages by how they trade a micro-batch's time for the step's, put together by an integer program.

Source: Mist (Zhu et al. 2025, EuroSys, arXiv:2503.19050). For every number of stages with equally many devices, and
every number of micro-batches, each stage has its strategy (data x tensor degrees, ZeRO 0, 1 or 3) and computes some of
its layers again. In the memory that there is, those count that no other one beats in both

    t   what a micro-batch takes                d   what a step takes once besides

and the program deals out the layers and picks one of them for every stage:

    minimise  (micro-batches - 1) * slowest t  +  sum of t  +  largest d

Not there: offloading, ZeRO 2, the overlap of exchanges with computation, and stages of unlike numbers of devices. The
number of layers on a stage is at most `WINDOW` off the mean, and those computed again go by quarters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from experiments.bench.baselines.galvatron import Leaf, leaves_of
from experiments.bench.baselines.pipelines import FoundPipeline, LayerRun, busy_ns, held_bytes, once_ns, priced
from experiments.bench.baselines.pricing import LayerPricing, Strategy
from strategy.layout.config import Recompute
from strategy.space.candidates import divisors

WINDOW = 2
QUARTERS = 4
PROGRAM_S, GAP = 2.0, 1e-3
"""Of one integer program."""

Choice = tuple[float, float, list[LayerRun]]
"""(t, d, the layers of a stage)."""


def mist(pricing: LayerPricing) -> FoundPipeline | None:
    """The fastest pipeline found; None where none fits."""
    best: FoundPipeline | None = None
    for (count, samples), depth in product(pricing.counts(), divisors(pricing.request.devices)):
        if depth > pricing.layers:
            continue
        leaves = leaves_of(pricing, pricing.request.devices // depth, samples, count, (0, 1, 3))
        if pricing.is_over():
            return best and FoundPipeline(best.step_ns, best.peak_bytes, best.what, "out of time")
        least_ns = min((busy_ns(prices.parts.middle) for _, prices in leaves), default=0)
        if not leaves or (best is not None and count * least_ns * pricing.layers // depth >= best.step_ns):
            continue
        fronts = [_front(pricing, leaves, depth, at, count) for at in range(depth)]
        stages = _program(fronts, pricing.layers, count)
        if stages is None:
            continue
        step_ns, peak = priced(pricing, stages, samples, count)
        if peak <= pricing.limit_bytes and (best is None or step_ns < best.step_ns):
            best = FoundPipeline(step_ns, peak, _words(stages, count))
    return best


def _front(pricing: LayerPricing, leaves: Sequence[Leaf], depth: int, at: int, count: int) -> list[Choice]:
    """What a stage may be, each number of layers apart: all that fits and that nothing beats in both times."""
    again = {(s.dp, s.tp, s.zero_stage): (s, prices) for s, prices in leaves if s.recompute is Recompute.FULL}
    mean, in_flight = pricing.layers // depth, min(depth - at, count)
    found: list[Choice] = []
    for number in range(max(1, mean - WINDOW), min(mean + WINDOW + 1, pricing.layers - depth + 1) + 1):
        here: list[Choice] = []
        for strategy, prices in leaves:
            if strategy.recompute is Recompute.FULL:
                continue
            other = again.get((strategy.dp, strategy.tp, strategy.zero_stage))
            for recomputed in sorted({number * quarter // QUARTERS for quarter in range(QUARTERS + 1)}):
                if recomputed and other is None:
                    continue
                stage = _stage((strategy, prices), other, number, recomputed, is_first=at == 0, is_last=at == depth - 1)
                if _held(stage, in_flight) <= pricing.limit_bytes:
                    pairs = [pair for layers in stage for pair in layers.parts]
                    t = sum(times * busy_ns(part) for part, times in pairs)
                    here.append((t, sum(times * once_ns(part) for part, times in pairs), stage))
        least = np.inf
        for choice in sorted(here, key=lambda each: each[:2]):
            if choice[1] < least:
                least = choice[1]
                found.append(choice)
    return found


def _stage(
    plain: Leaf, again: Leaf | None, number: int, recomputed: int, *, is_first: bool, is_last: bool
) -> list[LayerRun]:
    """Those that are computed again come first."""
    if again is None or not recomputed:
        return [LayerRun(*plain, number, is_first, is_last)]
    if recomputed == number:
        return [LayerRun(*again, number, is_first, is_last)]
    return [LayerRun(*again, recomputed, has_first=is_first), LayerRun(*plain, number - recomputed, has_last=is_last)]


def _held(stage: Sequence[LayerRun], in_flight: int) -> int:
    """What a stage holds by the estimate, its update aside."""
    pairs = [(part, number) for layers in stage for part, number in layers.parts if number]
    return sum(number * held_bytes(part, in_flight) for part, number in pairs) + max(p.passing_bytes for p, _ in pairs)


def _program(fronts: Sequence[Sequence[Choice]], layers: int, count: int) -> list[list[LayerRun]] | None:
    """One choice for every stage, `layers` in all."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    if not all(fronts):
        return None
    choices = [(at, choice) for at, front in enumerate(fronts) for choice in front]
    scale = max(choice[0] for _, choice in choices)
    width = len(choices) + 2  # and the slowest t and the largest d
    t = np.array([choice[0] / scale for _, choice in choices])
    d = np.array([choice[1] / scale for _, choice in choices])
    numbers = np.array([sum(layer.count for layer in choice[2]) for _, choice in choices])
    of_stage = np.array([[at == stage for at, _ in choices] for stage in range(len(fronts))], float)
    nothing = np.zeros((len(fronts), 2))
    slowest, longest = nothing - [1.0, 0.0], nothing - [0.0, 1.0]
    rows = [
        LinearConstraint(np.hstack([of_stage, nothing]), 1, 1),
        LinearConstraint(np.append(numbers, [0, 0]), layers, layers),
        LinearConstraint(np.hstack([of_stage * t, slowest]), -np.inf, 0),
        LinearConstraint(np.hstack([of_stage * d, longest]), -np.inf, 0),
    ]
    answer = milp(
        np.append(t, [count - 1, 1]),
        integrality=np.arange(width) < len(choices),
        bounds=Bounds(0, np.append(np.ones(len(choices)), [np.inf, np.inf])),
        constraints=rows,
        options={"time_limit": PROGRAM_S, "mip_rel_gap": GAP},
    )
    if answer.x is None:
        return None
    picked = [int(np.argmax(np.where(row, answer.x[:-2], -1))) for row in of_stage.astype(bool)]
    return [choices[pick][1][2] for pick in picked]


def _words(stages: Sequence[Sequence[LayerRun]], count: int) -> str:
    kinds: dict[Strategy, None] = dict.fromkeys(layers.strategy for stage in stages for layers in stage)
    return f"pp {len(stages)}, {count} micro-batches, {'; '.join(map(str, kinds))}"
