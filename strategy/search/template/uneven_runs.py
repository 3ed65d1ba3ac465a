"""Uneven runs: how many layers each place along a pipeline gets, where its stages are unlike.

What a place takes of a micro-batch is linear in its layers. So among all runs of which no place takes longer than a
bottleneck T, those take the least time in all that fill up the fastest places first. Every T that is the time of some
run gives one such cut; the makespan, by the schedule's own recurrence, says which are best, and moving single layers
from there whether there are better ones beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from strategy.bounds.pipeline_parts import FIRST, LAST, IntArray, parts_in, times_of
from strategy.bounds.point import PASSES
from strategy.bounds.tied import NOT_TIED, TiedMessages
from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import at_position
from strategy.layout.step_times import Overlap, steps_ns
from strategy.search.template.parts import LayerPart, ModelParts
from strategy.search.template.stages import Pipelined, peak_bytes
from strategy.space.short_model import MIDDLE

MICRO_BATCH = ("forward_ns", "backward_ns", "weight_ns")
MOST_CUTS = 64
"""Of so many bottlenecks, from the least one on, the cuts are looked at."""
BEST = 8
"""So many of the best cuts are looked beside."""
FEW_PLACES = 8
"""Among so many places, a layer is moved from any to any other; among more, to the next one or the one before."""


@dataclass(frozen=True)
class UnevenPipeline:
    """A pipeline whose layers are still to be dealt out.

    Attributes:
        config: degrees, schedule and order of stages; its runs are what is looked for.
        layers: of the model.
        parts: of the model, by stage.
        between_ns: from every place to the next, forward and backward.
        limits: bytes that a rank of each stage may hold.
        overlap: how communication runs beside computation.
        tied: what the first and the last stage hand each other once per step.
    """

    config: PlanConfig
    layers: int
    parts: Sequence[ModelParts]
    between_ns: tuple[IntArray, IntArray]
    limits: Sequence[float]
    overlap: Overlap
    tied: TiedMessages = NOT_TIED

    @property
    def places(self) -> int:
        """Runs of layers."""
        return self.config.pp * self.config.virtual_stages

    def best(self) -> Pipelined | None:
        """The runs that were found to take least; None where none was found that fits."""
        if self.places == 1:
            return self._pipelined((self.layers,))
        even = layer_runs(self.layers, self.config.schedule, self.config.pp, self.config.virtual_stages)
        new = dict.fromkeys((*self._cuts(), even))
        known: dict[tuple[int, ...], tuple[float, int, tuple[int, ...]]] = {}
        """Cut -> what it lacks of memory, its step, and itself: the least is the best."""
        looked_beside: set[tuple[int, ...]] = set()
        while new:
            steps = self._steps_ns(list(new)).tolist()
            known |= {cut: (self._lacks(cut), step_ns, cut) for cut, step_ns in zip(new, steps, strict=True)}
            best = sorted(known, key=known.__getitem__)[:BEST]
            beside = (other for cut in best if cut not in looked_beside for other in self._beside(cut))
            new = dict.fromkeys(other for other in beside if other not in known)
            looked_beside.update(best)
        return self._pipelined(best[0])

    def _pipelined(self, cut: tuple[int, ...]) -> Pipelined | None:
        """A cut with its step and what it holds; nearly equal runs are not written down."""
        config, where = self.config, parts_in(self.config, np.array(cut))
        if self._lacks(cut):
            return None
        even = cut == layer_runs(self.layers, config.schedule, config.pp, config.virtual_stages)
        host = tuple(
            int(laps.sum(0) @ [part.host_bytes for part in self._each(stage)]) for stage, laps in enumerate(where)
        )
        step_ns = int(self._steps_ns([cut])[0])
        return Pipelined(replace(config, runs=() if even else cut), step_ns, self._peaks(cut), host)

    def _each(self, stage: int) -> tuple[LayerPart, ...]:
        parts = self.parts[stage]
        return parts.first, parts.middle, parts.last

    @cached_property
    def _times(self) -> Mapping[str, IntArray]:
        """(stages, parts) of every pass."""
        stages = range(self.config.pp)
        return {
            name: np.array([[getattr(part, name) for part in self._each(stage)] for stage in stages], np.int64)
            for name in PASSES
        }

    def _steps_ns(self, cuts: Sequence[tuple[int, ...]]) -> IntArray:
        where = parts_in(self.config, np.array(cuts, np.int64))
        times = self.tied.beside(times_of(where, self._times, self.between_ns, self.overlap), self.config)
        return steps_ns(self.config.schedule, self.config.num_micro_batches, times)

    def _peaks(self, cut: tuple[int, ...]) -> tuple[int, ...]:
        where = parts_in(self.config, np.array(cut))
        return tuple(self._peak(stage, laps) for stage, laps in enumerate(where))

    def _peak(self, stage: int, laps: IntArray) -> int:
        """What a stage holds with so many parts on its laps, (laps, 3); many cuts have the same there."""
        key = stage, laps.tobytes()
        if key not in self._known_peaks:
            self._known_peaks[key] = peak_bytes(self._each(stage), self.config, stage, laps)
        return self._known_peaks[key]

    @cached_property
    def _known_peaks(self) -> dict[tuple[int, bytes], int]:
        """What `_peak` has found."""
        return {}

    def _lacks(self, cut: tuple[int, ...]) -> float:
        """Bytes, on the stage that lacks most; 0 where it fits."""
        return max(max(0.0, peak - limit) for peak, limit in zip(self._peaks(cut), self.limits, strict=True))

    def _cuts(self) -> list[tuple[int, ...]]:
        """The cut of every bottleneck."""
        config, places = self.config, self.places
        stages = [at_position(config.schedule, config.pp, place)[0] for place in range(places)]
        micro = np.sum([self._times[name] for name in MICRO_BATCH], axis=0)[stages]
        slope, base = np.maximum(micro[:, MIDDLE], 1), np.zeros(places, np.int64)
        base[0] += micro[0, FIRST] - micro[0, MIDDLE]
        base[-1] += micro[-1, LAST] - micro[-1, MIDDLE]
        most = self._most() if config.virtual_stages == 1 else np.full(places, self.layers)
        counts = np.arange(1, self.layers + 1)
        found = []
        for bottleneck in np.unique(base[:, None] + slope[:, None] * counts):
            room = np.minimum(most, (bottleneck - base) // slope)
            if room.min() < 1 or room.sum() < self.layers:
                continue
            found.append(_filled(room, np.argsort(slope, kind="stable"), self.layers))
            if len(found) == MOST_CUTS:
                break
        return found

    def _most(self) -> IntArray:
        """(stages,): layers that fit on each."""
        config, found = self.config, np.zeros(self.config.pp, np.int64)
        for stage, limit in enumerate(self.limits):
            laps = np.zeros((1, 3), np.int64)
            laps[0, FIRST], laps[0, LAST] = stage == 0, stage == config.pp - 1
            low, high = 0, self.layers
            while low < high:
                count = (low + high + 1) // 2
                laps[0, MIDDLE] = count - laps[0, FIRST] - laps[0, LAST]
                fits = self._peak(stage, laps) <= limit
                low, high = (count, high) if fits else (low, count - 1)
            found[stage] = low
        return found

    def _beside(self, cut: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Cuts with a layer elsewhere."""
        reach, found = (self.places if self.places <= FEW_PLACES else 1), []
        for source, run in enumerate(cut):
            for target in range(max(0, source - reach), min(self.places, source + reach + 1)):
                if target != source and run > 1:
                    moved = list(cut)
                    moved[source] -= 1
                    moved[target] += 1
                    found.append(tuple(moved))
        return found


def _filled(room: IntArray, order: IntArray, layers: int) -> tuple[int, ...]:
    """One layer at each place, and as many more as there is room for, in this order."""
    runs, left = np.ones_like(room), layers - len(room)
    for place in order:
        more = min(left, int(room[place]) - 1)
        runs[place] += more
        left -= more
    return tuple(int(run) for run in runs)
