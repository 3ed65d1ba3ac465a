"""Outer approximation: what the parts of a model can take and hold, bounded by cuts; the least step within them.

Each choice of layouts is a point (`point`). Whatever bounds a weighted sum of its coordinates over all choices is a
*cut*: the least work of every part, the least cost of a template under any weights. What a step takes is at least the
length of any path through the schedule, linear in the point, and what a stage holds is linear too. So over all choices
that fit, no step takes less than

    min z    z >= path(x) for some paths,    cut(x) >= value for all cuts,    held(x) <= limit on some stages

a small linear program (Kelley 1960, The cutting-plane method for solving convex programs). Its dual prices weigh the
template whose solution gives the next cut: Dantzig and Wolfe's decomposition, the Lagrangian bound over memory and
paths.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from strategy.bounds.least_exchange import LeastAdding
from strategy.bounds.least_work import LeastBytes, LeastSeconds
from strategy.bounds.point import (
    BYTES,
    DEFERRED,
    HELD,
    MESSAGES,
    PARTS,
    PASSES,
    SAVED,
    SIZE,
    SUMS,
    TIMES,
    WAITING,
    FloatArray,
)
from strategy.graph.graph import Phase
from strategy.layout.config import PlanConfig
from strategy.layout.critical_path import critical_path, straight_path
from strategy.layout.makespan import PipelineTimes
from strategy.layout.schedule import Schedule, chunk_order
from strategy.search.template.stages import FIRST, LAST, parts_at, stage_times

UNITS = np.concatenate([np.full(BYTES.start, 1e6), np.full(SIZE - BYTES.start, 2.0**20)])
"""Milliseconds and MiB: what the program counts in."""
CLOSE = 1e-5
"""By this part of it a bound is lowered: more than a linear program errs by."""
MOST_PATHS = 40
BEYOND = 10.0
"""What it costs, in steps, to hold twice the memory that there is."""
MOST = 1e7
"""In `UNITS`, of any coordinate: days and petabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """What a configuration takes at least, None if nothing fits; and the prices that say so.

    `weights`, (SIZE,), are what each coordinate of a point counts in the step, in nanoseconds.
    """

    step_ns: int | None
    weights: FloatArray


@dataclass(slots=True, eq=False)
class _Program:
    """The linear program of one configuration, which grows row by row."""

    solver: Any
    point: list[Any]
    step: Any
    paths: int = 0
    priced: list[tuple[Any, FloatArray]] = field(default_factory=list)
    """Rows whose dual prices weigh the point: what they say of it."""
    cuts: int = 0
    has_prices: bool = False
    """Whether the last solution has any: now and then the solver gives up."""

    @staticmethod
    def of(least: FloatArray, rows: FloatArray, limits: FloatArray) -> _Program:
        """Least `step` over points of at least `least`, in what `rows` leave."""
        from ortools.linear_solver import pywraplp

        # GLOP gives up on some of these programs, and cycles on others.
        solver = pywraplp.Solver.CreateSolver("CLP")
        point = [solver.NumVar(float(low), max(MOST, 2 * float(low)), "") for low in least]
        step = solver.NumVar(0.0, solver.infinity(), "")
        solver.Objective().SetCoefficient(step, 1.0)
        solver.Objective().SetMinimization()
        program = _Program(solver, point, step)
        for row, limit in zip(rows, limits, strict=True):
            held = solver.Constraint(-solver.infinity(), float(limit))
            program._fill(held, row)
            program.priced.append((held, row))
        return program

    def _fill(self, row: Any, numbers: FloatArray) -> None:
        for at in np.flatnonzero(numbers).tolist():
            row.SetCoefficient(self.point[at], float(numbers[at]))

    def add_path(self, path: FloatArray) -> None:
        """The step takes no less than a path."""
        row = self.solver.Constraint(-self.solver.infinity(), 0.0)
        self._fill(row, path)
        row.SetCoefficient(self.step, -1.0)
        self.paths += 1
        self.priced.append((row, path))

    def add_mixes(self, points: Sequence[FloatArray], excess: float) -> None:
        """No point but mixes of some; bytes that these hold beyond the limits cost `excess` each."""
        one = self.solver.Constraint(1.0, 1.0)
        shares = [self.solver.NumVar(0.0, self.solver.infinity(), "") for _ in points]
        for share in shares:
            one.SetCoefficient(share, 1.0)
        for at, coordinate in enumerate(self.point):
            row = self.solver.Constraint(0.0, self.solver.infinity())
            row.SetCoefficient(coordinate, 1.0)
            for share, point in zip(shares, points, strict=True):
                row.SetCoefficient(share, -float(point[at]))
        beyond = self.solver.NumVar(0.0, self.solver.infinity(), "")
        self.solver.Objective().SetCoefficient(beyond, excess)
        for held, _ in self.priced:
            held.SetCoefficient(beyond, -1.0)

    def add_cuts(self, cuts: list[tuple[FloatArray, float]]) -> None:
        """Add those that are new."""
        for numbers, value in cuts[self.cuts :]:
            self._fill(self.solver.Constraint(float(value), self.solver.infinity()), numbers)
        self.cuts = len(cuts)

    def solve(self) -> tuple[float, FloatArray] | None:
        """(the least step, the point of it); None where nothing fits."""
        from ortools.linear_solver import pywraplp

        status = self.solver.Solve()
        self.has_prices = status == pywraplp.Solver.OPTIMAL
        if status == pywraplp.Solver.INFEASIBLE:
            return None
        if status != pywraplp.Solver.OPTIMAL:
            return 0.0, np.array([variable.lb() for variable in self.point])
        return self.step.solution_value(), np.array([variable.solution_value() for variable in self.point])

    def weights(self) -> FloatArray:
        """(SIZE,): what the coordinates count, by the dual prices of paths and memory."""
        found = np.zeros(SIZE)
        for row, numbers in self.priced if self.has_prices else ():
            found += max(-row.dual_value(), 0.0) * numbers
        return found


@dataclass(slots=True)
class OuterApproximation:
    """Cuts on the points of one mesh and micro-batch; what is known of its configurations."""

    layers: int
    limit_bytes: int
    overlaps: bool
    least: FloatArray
    """(SIZE,), the least of every coordinate alone, in `UNITS`."""
    cuts: list[tuple[FloatArray, float]] = field(default_factory=list)
    programs: dict[tuple[PlanConfig, float], _Program] = field(default_factory=dict)

    @staticmethod
    def of(
        layers: int, limit_bytes: int, work: LeastSeconds, held: LeastBytes, *, overlaps: bool, between_ns: int = 0
    ) -> OuterApproximation:
        """What every coordinate is at least.

        Args:
            layers: of the model.
            limit_bytes: of a device.
            work: of a micro-batch, at least.
            held: by a layer, at least.
            overlaps: whether messages travel beside computation.
            between_ns: what is handed on between stages, at least.
        """
        least = least_times(work, layers)
        least[MESSAGES] = between_ns
        least[HELD], least[SUMS] = held.held, held.sums
        found = OuterApproximation(layers, limit_bytes, overlaps, least / UNITS)
        for part in range(PARTS if held.saved else 0):
            saved = np.zeros(SIZE)
            saved[[SAVED.start + part, WAITING.start + part]] = 1.0
            found.add_cut(saved, held.saved)
        return found

    def add_exchange(self, layer_ns: int, *, micro: bool) -> None:
        """Of every layer, beside what its update takes; `micro`: its gradients are exchanged as they arise."""
        passes = [PASSES.index(name) for name in ("backward_ns", "weight_ns", "before_ns", "after_ns")]
        for part in range(PARTS if layer_ns else 0):
            weights = np.zeros(SIZE)
            weights[[PARTS * i + part for i in passes[0 if micro else 2 :]]] = 1.0
            self.add_cut(weights, layer_ns + float(weights @ (self.least * UNITS)))

    def add_adding(self, layer: LeastAdding) -> None:
        """Of the gradients of every layer, beside what its passes take."""
        for part, rate in itertools.product(range(PARTS), (0.0, layer.ns_per_byte)):
            weights = np.zeros(SIZE)
            weights[[PARTS * PASSES.index(name) + part for name in ("backward_ns", "weight_ns")]] = 1.0
            least = float(weights @ (self.least * UNITS)) + layer.ns + rate * layer.nbytes
            weights[SUMS.start + part] = rate
            self.add_cut(weights, least)

    def add_cut(self, weights: FloatArray, least: float) -> None:
        """Take note of a template's least cost."""
        numbers = weights * UNITS
        size = numbers.max()
        self.cuts.append((numbers / size, least / size))

    def bound(self, config: PlanConfig, more_bytes: float = 0.0, *, exact: bool = True) -> Bound:
        """What a configuration takes at least, whatever fits; a guess, where more is held than the rows count.

        Args:
            config: of those that the cuts are for.
            more_bytes: that are held beside those that the rows count.
            exact: whether all paths count, or those that are found at once.
        """
        program = self.programs.get((config, more_bytes))
        if program is None:
            rows, limits = self._memory(config)
            limits = np.maximum(limits - more_bytes / UNITS[-1], 0.0)
            program = self.programs[config, more_bytes] = _Program.of(self.least, rows, limits)
            program.add_path(self._longest(config, self.least, exact=False))
        program.add_cuts(self.cuts)
        return self._within_paths(program, config, exact=exact)

    def mixed(self, config: PlanConfig, points: Sequence[FloatArray]) -> Bound:
        """What a configuration takes at least among mixes of points that are known, (SIZE,) in nanoseconds and bytes.

        Points may be of some coordinates alone, zero elsewhere. No cut on these raises the bound above that, before
        there is a new point; its prices are where to look for one. What mixes hold beyond the memory makes a step
        longer.
        """
        rows, limits = self._memory(config)
        program = _Program.of(self.least, rows, limits)
        longest_ms = max(self.step_ns(config, point) for point in points) / UNITS[0]
        program.add_mixes([point / UNITS for point in points], BEYOND * longest_ms / float(limits.min()))
        program.add_path(self._longest(config, points[-1] / UNITS, exact=True))
        program.add_cuts(self.cuts)
        return self._within_paths(program, config, exact=True)

    def _within_paths(self, program: _Program, config: PlanConfig, *, exact: bool) -> Bound:
        """The least step, by as many paths as it takes."""
        while True:
            solved = program.solve()
            if solved is None:
                return Bound(None, np.zeros(SIZE))
            step_ms, point = solved
            longest = self._longest(config, point, exact=exact)
            if longest @ point <= step_ms * (1 + 1e-4) or program.paths >= MOST_PATHS:
                break
            program.add_path(longest)
        weights = program.weights() / UNITS * UNITS[0]
        least_ms = program.solver.Objective().Value() if program.has_prices else step_ms
        return Bound(int(least_ms * UNITS[0] * (1 - CLOSE)), weights)

    def step_ns(self, config: PlanConfig, point: FloatArray) -> float:
        """What a step of a configuration takes at least at a point, (SIZE,) in nanoseconds and bytes."""
        return float(self._longest(config, point / UNITS, exact=True) @ (point / UNITS) * UNITS[0])

    def held_bytes(self, config: PlanConfig, point: FloatArray) -> float:
        """What the rows count at a point, of the stage that holds most."""
        rows, _ = self._memory(config)
        return float((rows @ (point / UNITS)).max() * UNITS[-1])

    def _longest(self, config: PlanConfig, point: FloatArray, *, exact: bool) -> FloatArray:
        """(SIZE,): the longest path of a point, as a row; or the longest straight one."""
        ns = (point * UNITS)[TIMES].reshape(5, 3).astype(np.int64)
        forward_ns, backward_ns = (point * UNITS)[MESSAGES].astype(np.int64).tolist()
        between = forward_ns, backward_ns
        stages = stage_times(config, self.layers, dict(zip(PASSES, ns, strict=True)), between, overlaps=self.overlaps)
        find = critical_path if exact else straight_path
        counts = find(config.schedule, config.num_micro_batches, stages).counts
        return _row(config, self.layers, counts)

    def _memory(self, config: PlanConfig) -> tuple[FloatArray, FloatArray]:
        """Rows of what the first and the last stage hold, without and with sums of gradients; their limits."""
        where = parts_at(config, self.layers)
        found = []
        for stage, sums in itertools.product(dict.fromkeys((0, config.pp - 1)), (False, True)):
            row = np.zeros(SIZE)
            row[HELD] = where[stage].sum(0)
            row[SUMS] = row[HELD] * sums
            for part, in_flight in blocks(config, stage, sums=sums):
                row[part] = np.array(in_flight) @ where[stage]
            found.append(row)
        limit = self.limit_bytes / UNITS[-1] * (1 + CLOSE)
        return np.array(found), np.full(len(found), limit)


def least_times(work: LeastSeconds, layers: int, *, free: bool = False) -> FloatArray:
    """(SIZE,): the least nanoseconds of every coordinate alone; `free`: of what does not follow samples."""
    least = np.zeros(SIZE)
    seconds = [work.forward_s, work.backward_s, work.weight_s, (0.0,) * 3, work.step_s]
    if free:
        seconds[:3], seconds[4] = work.free_s, (0.0,) * 3
    for i, (ahead, within, behind) in enumerate(seconds):
        least[3 * i : 3 * i + 3] = within / layers
        least[3 * i + FIRST] += ahead
        least[3 * i + LAST] += behind
    return least * 1e9


def _row(config: PlanConfig, layers: int, counts: PipelineTimes) -> FloatArray:
    """A path by how often it passes the parts."""
    where, row = parts_at(config, layers), np.zeros(SIZE)
    for i, name in enumerate(PASSES):
        passed = getattr(counts, name)
        at = where if passed.ndim == 2 else where.sum(1)
        row[3 * i : 3 * i + 3] = np.tensordot(passed, at, passed.ndim)
    row[MESSAGES] = counts.forward_message_ns.sum(), counts.backward_message_ns.sum()
    return row


def blocks(config: PlanConfig, stage: int, *, sums: bool) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    """What a stage holds of micro-batches: (coordinates of a point, (laps,) how many of them are held at once).

    So many blocks there are of every such tensor, by the order of the stage's chunks; `sums`: while gradients are added
    up.
    """
    last = _last(config)
    spans = (
        (SAVED, Phase.FORWARD, Phase.BACKWARD),
        (WAITING, Phase.FORWARD, last),
        (DEFERRED, Phase.BACKWARD, last),
    )
    return tuple((part, chunks_in_flight(config, stage, written, read, sums=sums)) for part, written, read in spans)


def chunks_in_flight(config: PlanConfig, stage: int, written: Phase, read: Phase, *, sums: bool) -> tuple[int, ...]:
    """(laps,): micro-batches that are held at once from one pass to another; `sums`: while gradients are added up.

    What the backward pass leaves to the gradients of weights counts where several micro-batches wait at once: then it
    has a place of its own, beside what others have saved.
    """
    if written is read:
        return (0,) * config.virtual_stages
    count = config.num_micro_batches
    most = _in_flight(config.schedule, config.pp, stage, count, config.virtual_stages, written, read)
    if written is Phase.BACKWARD:
        enough = 4 * config.pp * config.virtual_stages <= count
        return tuple(blocks if enough and blocks > 1 else 0 for blocks in most)
    return tuple(blocks - (sums and blocks >= count) for blocks in most)


def _last(config: PlanConfig) -> Phase:
    """The pass after which nothing is held of a micro-batch."""
    return Phase.WEIGHT if config.schedule.splits_backward else Phase.BACKWARD


def _in_flight(
    schedule: Schedule, stages: int, stage: int, m: int, laps: int, written: Phase, read: Phase
) -> tuple[int, ...]:
    few = 3 * stages if schedule is Schedule.INTERLEAVED else 2 * stages + 2
    if schedule is Schedule.GPIPE or m <= few:
        return _most_in_flight(schedule, stages, stage, m, laps, written, read)
    return _most_in_flight(schedule, stages, stage, few, laps, written, read)


@lru_cache(maxsize=1 << 12)
def _most_in_flight(
    schedule: Schedule, stages: int, stage: int, m: int, laps: int, written: Phase, read: Phase
) -> tuple[int, ...]:
    if schedule is Schedule.GPIPE:
        return (m if stages > 1 else 1,)
    now, most = [0] * laps, [0] * laps
    for chunk in chunk_order(schedule, stages, stage, m, laps):
        if chunk.phase is written:
            now[chunk.lap] += 1
            most[chunk.lap] = max(most[chunk.lap], now[chunk.lap])
        elif chunk.phase is read:
            now[chunk.lap] -= 1
    return tuple(most)
