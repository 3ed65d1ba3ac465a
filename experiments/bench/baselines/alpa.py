"""Alpa-like: the best layouts of a run of layers on every submesh, then the best cut into stages, each with a submesh.

Source: Alpa (Zheng et al. 2022, OSDI, arXiv:2201.12023), sections 4 and 5. Layers are gathered into at most `CLUSTERS`
of equal runs. On a submesh every logical shape, data x tensor, has layouts by the integer program, with what is done
once per step replicated or shared out (ZeRO 0 and 1). For every number of micro-batches, and recomputing of all layers
or none, stages are found by dynamic programming under a bound on the slowest, which grows from the least:

    minimise  sum of t  +  (micro-batches - 1) * slowest t
    least[s, i, d] = min over j, submesh of  t(clusters i to j, submesh, s) + least[s - 1, j, d - devices of submesh]

where t is infinite if a stage with s - 1 behind it does not fit. As there, messages between stages count nothing while
stages are chosen, and bounds closer than a part `EPSILON` count as one; what is done once per step is spread over the
micro-batches. Submeshes have a number of devices that divides all of them, at most `UNITS` of the smallest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from experiments.bench.baselines.galvatron import Leaf
from experiments.bench.baselines.pipelines import FoundPipeline, LayerRun, busy_ns, held_bytes, once_ns, priced
from experiments.bench.baselines.pricing import LayerPricing
from experiments.bench.baselines.uniform import strategies
from strategy.layout.config import Recompute
from strategy.space.candidates import divisors

CLUSTERS = 16
UNITS = 32
EPSILON = 0.02

Times = npt.NDArray[np.float64]


def alpa(pricing: LayerPricing) -> FoundPipeline | None:
    """The fastest pipeline found; None where none fits."""
    best: FoundPipeline | None = None
    for (count, samples), recompute in product(pricing.counts(), (Recompute.NONE, Recompute.FULL)):
        submeshes = dict(_submeshes(pricing, recompute, samples, count))
        if pricing.is_over():
            return best and FoundPipeline(best.step_ns, best.peak_bytes, best.what, "out of time")
        if not submeshes:
            continue
        stages = _Partition(pricing, submeshes, count).best()
        if stages is None:
            continue
        step_ns, peak = priced(pricing, stages, samples, count)
        if peak <= pricing.limit_bytes and (best is None or step_ns < best.step_ns):
            best = FoundPipeline(step_ns, peak, _words(stages, count))
    return best


def _unit(devices: int) -> int:
    """The smallest submesh."""
    return next(unit for unit in divisors(devices) if devices // unit <= UNITS)


def _submeshes(
    pricing: LayerPricing, recompute: Recompute, samples: int, count: int
) -> Iterator[tuple[int, Sequence[Leaf]]]:
    """Devices -> the logical shapes that there are, with their layouts."""
    devices = pricing.request.devices
    for ranks in divisors(devices):
        if ranks % _unit(devices):
            continue
        each = (replace(one, searched=True) for one in strategies(pricing, ranks, (0, 1)) if one.recompute is recompute)
        prices = [(one, pricing.prices(one, samples, count)) for one in each]
        leaves = [(one, found) for one, found in prices if found is not None]
        if leaves:
            yield ranks, leaves


@dataclass(slots=True)
class _Partition:
    """The inter-operator problem: a model's clusters, cut into stages on submeshes."""

    pricing: LayerPricing
    submeshes: Mapping[int, Sequence[Leaf]]
    count: int

    @property
    def starts(self) -> list[int]:
        """Where every cluster begins, and the end of the last."""
        layers = self.pricing.layers
        clusters = min(layers, CLUSTERS)
        return [layers * i // clusters for i in range(clusters + 1)]

    def best(self) -> list[list[LayerRun]] | None:
        """The stages that cost least by Alpa's objective; None where nothing fits."""
        unit, devices = _unit(self.pricing.request.devices), self.pricing.request.devices
        clusters = len(self.starts) - 1
        depths = min(clusters, devices // unit)
        tables = {
            (ranks, in_flight): self._times(ranks, in_flight)
            for ranks, in_flight in product(self.submeshes, range(1, min(depths, self.count) + 1))
        }
        finite = np.concatenate([table[0][np.isfinite(table[0])] for table in tables.values()])
        best_ns, best = np.inf, None
        slowest = 0.0
        for bound in np.unique(finite):
            if bound < (1 + EPSILON) * slowest:
                continue
            if self.pricing.is_over() or (self.count - 1) * bound >= best_ns:
                break
            # All bounds that are nearly alike are looked at as the largest of them.
            slowest = float(finite[finite <= (1 + EPSILON) * bound].max())
            found = self._under(slowest, tables, depths, devices // unit, unit)
            if found is not None and found[0] + (self.count - 1) * found[1] < best_ns:
                best_ns, best = found[0] + (self.count - 1) * found[1], found[2]
        return best

    def _times(self, ranks: int, in_flight: int) -> tuple[Times, npt.NDArray[np.int64]]:
        """(clusters + 1, clusters + 1): what a stage from one cluster to another takes, and by which leaf."""
        starts, leaves = np.array(self.starts), self.submeshes[ranks]
        ends = starts[None, :] - starts[:, None]
        found = []
        for _, prices in leaves:
            first, middle, last = prices.parts.first, prices.parts.middle, prices.parts.last

            def over(figures: tuple[float, float, float]) -> Times:
                ahead, each, behind = figures
                at_first, at_last = np.arange(starts.size) == 0, np.arange(starts.size) == starts.size - 1
                total = ends * each + at_first[:, None] * (ahead - each) + at_last[None, :] * (behind - each)
                return np.where(ends > 0, total, np.inf)

            parts = first, middle, last
            t = over(tuple(busy_ns(p) + once_ns(p) / self.count for p in parts))  # type: ignore[arg-type]
            held = over(tuple(float(held_bytes(p, in_flight)) for p in parts))  # type: ignore[arg-type]
            room = self.pricing.limit_bytes - max(p.passing_bytes for p in parts)
            found.append(np.where(held <= room, t, np.inf))
        times = np.array(found)
        return times.min(0), times.argmin(0)

    def _under(
        self,
        slowest: float,
        tables: Mapping[tuple[int, int], tuple[Times, npt.NDArray[np.int64]]],
        depths: int,
        units: int,
        unit: int,
    ) -> tuple[float, float, list[list[LayerRun]]] | None:
        """(sum of t, slowest t, the stages) that take least with no stage slower than that."""
        size = len(self.starts)
        least = np.full((depths + 1, size, units + 1), np.inf)
        least[0, -1, 0] = 0.0
        picks = np.zeros((depths + 1, size, units + 1, 2), np.int64)
        for behind in range(1, depths + 1):
            for ranks in self.submeshes:
                t = tables[ranks, min(behind, self.count)][0]
                taken = ranks // unit
                if taken > units or t.min() > slowest:
                    continue
                ways = np.where(t <= slowest, t, np.inf)[:, :, None] + least[behind - 1][None, :, : units + 1 - taken]
                total, to = ways.min(1), ways.argmin(1)
                better = total < least[behind, :, taken:]
                least[behind, :, taken:][better] = total[better]
                picks[behind, :, taken:, 0][better] = to[better]
                picks[behind, :, taken:, 1][better] = ranks
        behind = int(least[:, 0, units].argmin())
        total_ns = float(least[behind, 0, units])
        if not np.isfinite(total_ns):
            return None
        stages, times, at, left = [], [], 0, units
        while behind:
            to, ranks = (int(each) for each in picks[behind, at, left])
            t, leaf = tables[ranks, min(behind, self.count)]
            times.append(float(t[at, to]))
            number = self.starts[to] - self.starts[at]
            strategy, prices = self.submeshes[ranks][leaf[at, to]]
            stages.append([LayerRun(strategy, prices, number, at == 0, to == size - 1)])
            at, left, behind = to, left - ranks // unit, behind - 1
        return total_ns, max(times), stages


def _words(stages: Sequence[Sequence[LayerRun]], count: int) -> str:
    kinds = dict.fromkeys(str(stage[0].strategy) for stage in stages)
    return f"pp {len(stages)}, {count} micro-batches, {'; '.join(kinds)}"
