"""Outer approximation: what the parts of a model can take and hold, bounded by cuts; the least step within them.

Each choice of layouts is a point: what the first, the middle and the last part take in every pass, and what they hold.
Whatever bounds a weighted sum of these over all choices is a *cut*: the least work of every part, the least cost of a
template under any weights. What a step takes is at least the length of any path through the schedule, linear in the
point, and what a stage holds is linear too. So over all choices that fit, no step takes less than

    min z    z >= path(x) for some paths,    cut(x) >= value for all cuts,    held(x) <= limit on some stages

a small linear program (Kelley 1960, The cutting-plane method for solving convex programs). Its dual prices weigh the
template whose solution gives the next cut: Dantzig and Wolfe's decomposition, the Lagrangian bound over memory and
paths.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from strategy.layout.config import PlanConfig
from strategy.layout.critical_path import critical_path
from strategy.layout.makespan import PipelineTimes
from strategy.layout.schedule import Schedule
from strategy.search.candidate.least_work import LeastBytes, LeastSeconds
from strategy.search.layouts.short_model import MIDDLE
from strategy.search.template.layer_template import PASSES, Weights
from strategy.search.template.parts import ModelParts
from strategy.search.template.stages import FIRST, LAST, parts_at, stage_times

FloatArray = npt.NDArray[np.float64]
TIMES, HELD, SUMS, SAVED = slice(0, 15), slice(15, 18), slice(18, 21), slice(21, 24)
"""Where things are in a point: the milliseconds of `PASSES` x parts, the MiB held, summed up, saved per micro-batch."""
SIZE = 24
MS, MIB = 1e6, 2.0**20
Number = TypeVar("Number", int, float)
CLOSE = 1e-7
"""By this part of it a bound is lowered: more than a linear program errs by."""
MOST_PATHS = 8
LARGEST_WEIGHT = 2**12
"""Weights of templates are integers: dual prices, scaled to be at most this."""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """What a configuration takes at least, None if nothing fits; and the prices that say so."""

    step_ns: int | None
    times: FloatArray
    """(5, 3): what a nanosecond of a pass and part counts in the step."""
    held: FloatArray
    """(3,): nanoseconds of the step that a byte held by a part is worth."""
    sums: FloatArray
    """(3,): the same of a byte of sums of gradients."""
    saved: FloatArray
    """(3,): the same of a byte that a micro-batch saves."""


@dataclass(slots=True)
class OuterApproximation:
    """Cuts on the points of one mesh and micro-batch; what is known of its configurations."""

    layers: int
    limit_bytes: int
    overlaps: bool
    least: FloatArray
    """(SIZE,), the least of every coordinate alone."""
    cuts: list[tuple[FloatArray, float]] = field(default_factory=list)
    paths: dict[PlanConfig, list[FloatArray]] = field(default_factory=dict)

    @staticmethod
    def of(
        layers: int, limit_bytes: int, work: LeastSeconds, held: LeastBytes, following_ns: int, *, overlaps: bool
    ) -> OuterApproximation:
        """The first cuts.

        Args:
            layers: of the model.
            limit_bytes: of a device.
            work: of a micro-batch, at least.
            held: by a layer, at least.
            following_ns: what a micro-batch takes in what follows samples, in all layers and passes, at least.
            overlaps: whether messages travel beside computation.
        """
        least = np.zeros(SIZE)
        seconds = [work.forward_s, work.backward_s, work.weight_s, (0.0,) * 3, work.step_s]
        for i, (ahead, within, behind) in enumerate(seconds):
            least[3 * i : 3 * i + 3] = within / layers
            least[3 * i + FIRST] += ahead
            least[3 * i + LAST] += behind
        least[TIMES] *= 1e9 / MS
        least[HELD], least[SUMS], least[SAVED] = held.held / MIB, held.sums / MIB, held.saved / MIB
        found = OuterApproximation(layers, limit_bytes, overlaps, least)
        micro = np.zeros(SIZE)
        micro[:9] = np.tile([1, layers - 2, 1], 3)
        found.cuts.append((micro, following_ns / MS + (work.micro_batch_s - work.following_s) * 1e9 / MS))
        return found

    def add_cut(self, weights: Weights, least: int) -> None:
        """Take note of a template's least cost."""
        vector = np.zeros(SIZE)
        for i, name in enumerate(PASSES):
            vector[3 * i : 3 * i + 3] = np.array(weights.times[name], float) * MS
        for part, price in ((HELD, weights.held), (SUMS, weights.sums), (SAVED, weights.saved)):
            vector[part] = np.array(price) * MIB
        size = vector.max()
        self.cuts.append((vector / size, least / size))

    def bound(self, config: PlanConfig) -> Bound:
        """What a configuration takes at least, whatever fits."""
        paths = self.paths.setdefault(config, [])
        if not paths:
            paths.append(self._critical(config, self.least))
        rows, limits = self._memory(config)
        while True:
            solved = linprog(
                np.append(np.zeros(SIZE), 1.0),
                A_ub=np.vstack(
                    [
                        np.column_stack([np.array(paths), -np.ones(len(paths))]),
                        np.column_stack([-np.array([cut for cut, _ in self.cuts]), np.zeros(len(self.cuts))]),
                        np.column_stack([rows, np.zeros(len(rows))]),
                    ]
                ),
                b_ub=np.concatenate([np.zeros(len(paths)), [-value for _, value in self.cuts], limits]),
                bounds=[*((low, None) for low in self.least), (0, None)],
                method="highs",
            )
            if solved.status == 2:
                return Bound(None, np.zeros((5, 3)), *np.zeros((3, 3)))
            point, step_ms = solved.x[:SIZE], float(solved.x[SIZE])
            longest = self._critical(config, point)
            if longest @ point <= step_ms * (1 + 1e-4) or len(paths) >= MOST_PATHS:
                break
            paths.append(longest)
        prices = -solved.ineqlin.marginals
        times = (prices[: len(paths)] @ np.array(paths))[TIMES].reshape(5, 3)
        memory = prices[len(prices) - len(rows) :] @ rows
        step_ns = int(step_ms * MS * (1 - CLOSE))
        return Bound(step_ns, times, *(memory[part] * MS / MIB for part in (HELD, SUMS, SAVED)))

    def _critical(self, config: PlanConfig, point: FloatArray) -> FloatArray:
        """The longest path of a point, as a row."""
        times = {name: (point[3 * i : 3 * i + 3] * MS).astype(np.int64) for i, name in enumerate(PASSES)}
        stages = stage_times(config, self.layers, times, (0, 0), overlaps=self.overlaps)
        return _row(config, self.layers, critical_path(config.schedule, config.num_micro_batches, stages).counts)

    def _memory(self, config: PlanConfig) -> tuple[FloatArray, FloatArray]:
        """Rows of what the first and the last stage hold, without and with sums of gradients; their limits."""
        where = parts_at(config, self.layers)
        found = []
        for stage, sums in itertools.product(dict.fromkeys((0, config.pp - 1)), (False, True)):
            row = np.zeros(SIZE)
            row[HELD] = where[stage].sum(0)
            row[SUMS] = row[HELD] * sums
            chunks = chunks_in_flight(config, stage, sums=sums)
            if config.virtual_stages == 1:
                row[SAVED] = chunks * where[stage, 0]
            else:  # the first layer saves what any does
                row[SAVED][MIDDLE] = chunks * where[stage].sum(1).min()
            found.append(row)
        limit = self.limit_bytes / MIB * (1 + CLOSE)
        return np.array(found), np.full(len(found), limit)


def _row(config: PlanConfig, layers: int, counts: PipelineTimes) -> FloatArray:
    """A path by how often it passes the parts."""
    where, row = parts_at(config, layers), np.zeros(SIZE)
    for i, name in enumerate(PASSES):
        passed = getattr(counts, name)
        at = where if passed.ndim == 2 else where.sum(1)
        row[3 * i : 3 * i + 3] = np.tensordot(passed, at, passed.ndim)
    return row


def chunks_in_flight(config: PlanConfig, stage: int, *, sums: bool) -> int:
    """Runs of layers that are at least saved on a stage at some time; `sums`: when gradients are added up already."""
    p, m, laps = config.pp, config.num_micro_batches, config.virtual_stages
    if config.schedule is Schedule.GPIPE and p > 1:
        most = m
    elif config.schedule is Schedule.INTERLEAVED:
        most = 2 * (p - stage - 1) + (laps - 1) * p + 1
    elif config.schedule is Schedule.ZBV:
        most = 2 * (p - stage) if stage == 0 else 1
    elif config.schedule is Schedule.ONEFLOW:
        most = 1
    else:
        most = p - stage
    return min(most, laps * m) - (sums and most >= laps * m)


def template_weights(bound: Bound) -> Weights:
    """The dual prices of a bound as the weights of a template."""
    scale = scale_of(bound)
    times = np.rint(bound.times * scale).astype(np.int64)
    return Weights(
        {name: three(times[i].tolist()) for i, name in enumerate(PASSES)},
        three((bound.held * scale).tolist()),
        three((bound.sums * scale).tolist()),
        three((bound.saved * scale).tolist()),
    )


def scale_of(bound: Bound) -> float:
    """What the weights of its template are of its prices."""
    return LARGEST_WEIGHT / max(float(bound.times.max()), 1.0)


def three(numbers: list[Number]) -> tuple[Number, Number, Number]:
    """As a tuple."""
    first, middle, last = numbers
    return first, middle, last


def times_of(parts: ModelParts) -> dict[str, npt.NDArray[np.int64]]:
    """Pass -> what the parts take in it."""
    each = (parts.first, parts.middle, parts.last)
    return {name: np.array([getattr(part, name) for part in each], np.int64) for name in PASSES}
