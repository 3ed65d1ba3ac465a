"""Path mix: the mean of several paths through a step, in any shares: linear in these, and a bound on the step.

A path is said by times under which it is the longest one. So whatever numbers a mix holds, it is one of paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategy.base.errors import CertificateError, SbplanError
from strategy.bounds.multipliers import MOST_NS
from strategy.cost.cost import CostModel
from strategy.layout.arrangement import Pipeline
from strategy.layout.critical_path import critical_path, even_paths
from strategy.layout.objective import overlap_of
from strategy.layout.step_times import ARRAYS, MeanPath, StepTimes, in_ticks, mean_path, no_times, step_ns

MOST_SHARES, MOST_PATHS, MOST_COUNTED, MOST_COARSE = 1 << 16, 64, 1 << 44, 62
"""Of a mix, of how often its paths pass anything, and of bits left out: sums of more could not be counted."""


def mixed(paths: Sequence[MeanPath], shares: Sequence[int]) -> MeanPath:
    """The mean of some paths, each as often as its share says."""
    common, first = math.lcm(*(path.number for path in paths)), paths[0].counts
    total = no_times(first.stages, first.laps)
    for share, path in zip(shares, paths, strict=True):
        for name in ARRAYS:
            total[name] += share * (common // path.number) * getattr(path.counts, name)
    return MeanPath(StepTimes(**total, overlap=first.overlap), sum(shares) * common)


def coarsened(path: MeanPath, bits: int) -> MeanPath:
    """A path that is no longer, in coarser units: what it counts is rounded down, what a step counts is rounded up."""
    counts = {name: getattr(path.counts, name) >> bits for name in ARRAYS}
    return MeanPath(replace(path.counts, **counts), -(-path.number >> bits))


@dataclass(frozen=True, slots=True, eq=False)
class PathMix:
    """Paths through a step, each as often as its share says.

    Attributes:
        points: times under which a path is the longest; None: those that pass all stages about alike, together.
        shares: of each, whole numbers.
        coarse: so many bits of what its paths count are left out, where sums of costs would be too large without.
    """

    points: tuple[StepTimes | None, ...]
    shares: tuple[int, ...]
    coarse: int = 0

    def mean(self, pipeline: Pipeline, stages: int, cost: CostModel) -> MeanPath:
        """What its paths count, on a pipeline of so many stages."""
        return coarsened(
            mixed([_path(point, pipeline, stages, cost) for point in self.points], self.shares), self.coarse
        )

    def checked_mean(self, pipeline: Pipeline, stages: int, cost: CostModel) -> MeanPath:
        """The same, of a mix that others wrote.

        Raises:
            CertificateError: it is none of this pipeline, or its numbers are too large to be counted.
        """
        if not 0 < len(self.points) == len(self.shares) <= MOST_PATHS:
            raise CertificateError("a mix of no paths", got=f"{len(self.points)} paths, {len(self.shares)} shares")
        if min(self.shares) < 0 or not 0 < sum(self.shares) <= MOST_SHARES:
            raise CertificateError("shares that no mix has", expected=f"none below 0, in all 1 to {MOST_SHARES}")
        if not 0 <= self.coarse <= MOST_COARSE:
            raise CertificateError("bits that no count has", got=self.coarse, expected=f"0 to {MOST_COARSE}")
        for point in self.points:
            if point is not None:
                _check(point, pipeline, stages)
        found = self.mean(pipeline, stages, cost)
        for name in ARRAYS:
            counts = getattr(found.counts, name)
            if counts.size and not 0 <= counts.min() <= counts.max() <= MOST_COUNTED:
                raise CertificateError("paths too long to be counted", where=name, got=int(counts.max()))
        return found


EVEN = PathMix((None,), (1,))
"""The paths that pass all stages about alike."""


def _path(point: StepTimes | None, pipeline: Pipeline, stages: int, cost: CostModel) -> MeanPath:
    """The longest path at a point; without one, those that pass all stages about alike."""
    schedule, count, overlap = pipeline.schedule, pipeline.num_micro_batches, overlap_of(pipeline, cost)
    if point is None:
        even = even_paths(schedule, stages, pipeline.laps, count, pipeline.overlaps)
        return mean_path(schedule, count, StepTimes(**no_times(stages, pipeline.laps), overlap=overlap), even)
    times = replace(point, overlap=overlap)
    return mean_path(schedule, count, times, critical_path(schedule, count, in_ticks(schedule, count, times)))


def _check(point: StepTimes, pipeline: Pipeline, stages: int) -> None:
    """That a point has times of a step on a pipeline, and that paths through it can be counted."""
    for name, zeros in no_times(stages, pipeline.laps).items():
        times = getattr(point, name)
        if times.shape != zeros.shape:
            raise CertificateError("times of another pipeline", where=name, got=times.shape, expected=f"{zeros.shape}")
        if times.size and (times.min() < 0 or times.max() > MOST_NS):
            raise CertificateError("a path of no point", where=name, expected=f"times of 0 to {MOST_NS} ns")
    try:
        step_ns(pipeline.schedule, pipeline.num_micro_batches, point)
    except SbplanError as error:
        raise CertificateError(str(error)) from None
