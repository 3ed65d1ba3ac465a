"""Uniform configurations, all of them, as Calculon enumerates (Isaev et al. 2023, SC).

Every layer has one strategy and every stage as many layers: data x tensor x pipeline degrees, micro-batch, 1F1B or
interleaved with every number of laps that divides a stage, all or nothing computed again, ZeRO 0 or 1, tensor axes by
Megatron's rule with sequence parallelism. What does not fit by the estimate is left out; the fastest is the answer.

Of Calculon's space there is no offloading, and no recomputing of attention alone; of its costs, no overlap of the
exchange of gradients with the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from experiments.bench.baselines.pipelines import FoundPipeline, busy_ns
from experiments.bench.baselines.pricing import LayerPricing, Strategy
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.search.template.stages import pipelined
from strategy.space.candidates import divisors


def uniform(pricing: LayerPricing) -> FoundPipeline | None:
    """The fastest uniform configuration that fits; None where none does."""
    best: FoundPipeline | None = None
    for (count, samples), stages in product(pricing.counts(), divisors(pricing.request.devices)):
        if pricing.layers % stages:
            continue
        for strategy in strategies(pricing, pricing.request.devices // stages, zero_stages=(0, 1)):
            if pricing.is_over():
                return best and FoundPipeline(best.step_ns, best.peak_bytes, best.what, "out of time")
            prices = pricing.prices(strategy, samples, count)
            if prices is None:
                continue
            least_ns = count * busy_ns(prices.parts.middle) * pricing.layers // stages
            if best is not None and least_ns >= best.step_ns:
                continue
            for schedule, laps in _schedules(stages, pricing.layers // stages, count):
                config = PlanConfig(
                    strategy.dp,
                    strategy.tp,
                    stages,
                    samples // strategy.dp,
                    count,
                    schedule,
                    virtual_stages=laps,
                    recompute=strategy.recompute,
                    zero_stage=strategy.zero_stage,
                )
                overlap = pricing.overlap([strategy], config.pp)
                found = pipelined(prices.parts, config, pricing.layers, prices.between_ns, overlap)
                peak = max(found.peak_bytes)
                if peak <= pricing.limit_bytes and (best is None or found.step_ns < best.step_ns):
                    best = FoundPipeline(found.step_ns, peak, _words(strategy, config))
    return best


def strategies(pricing: LayerPricing, ranks: int, zero_stages: tuple[int, ...]) -> Iterator[Strategy]:
    """Those of a stage with so many ranks; one alone has nothing to share out."""
    for (dp, tp), recompute in product(pricing.meshes(ranks), (Recompute.NONE, Recompute.FULL)):
        for zero in zero_stages if dp > 1 else (0,):
            yield Strategy(dp, tp, recompute, zero)


def _schedules(stages: int, depth: int, count: int) -> Iterator[tuple[Schedule, int]]:
    """1F1B, and interleaved with every number of laps that divides the layers of a stage."""
    yield Schedule.ONE_F_ONE_B, 1
    for laps in divisors(depth) if stages > 1 else ():
        if laps > 1 and schedule_problem(Schedule.INTERLEAVED, stages, laps, count) is None:
            yield Schedule.INTERLEAVED, laps


def _words(strategy: Strategy, config: PlanConfig) -> str:
    laps = f" x {config.virtual_stages}" if config.virtual_stages > 1 else ""
    return f"{strategy}, pp {config.pp}{laps}, {config.num_micro_batches} micro-batches of {config.micro_batch}"
