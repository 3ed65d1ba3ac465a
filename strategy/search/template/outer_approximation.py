"""Outer approximation: what the parts of a model can take and hold, bounded by cuts; the least step within them.

Each choice of layouts is a point (`point`). Whatever bounds a weighted sum of its coordinates over all choices is a
*cut*: the least work of every part, the least cost of a template under any weights. What a step takes is at least the
length of any path through the schedule, linear in the point, and what a stage holds is linear too. So over all choices
that fit, no step takes less than

    min z    z >= path(x) for some paths,    cut(x) >= value for all cuts,    held(x) <= limit on some stages

a small linear program (Kelley 1960, The cutting-plane method for solving convex programs). Its dual prices weigh the
template whose solution gives the next cut: Dantzig and Wolfe's decomposition, the Lagrangian bound over memory and
paths.

Where the layers between the first and the last may be treated in several ways (`bounds.kept_layers`), each way has
points and cuts of its own, and what a step takes is that of the mean: the program is over the hull of all ways,

    x = x1 + x2,    share1 + share2 = 1,    cut(x1) >= value * share1 for cuts of the first way, and so on

(Balas 1979, Disjunctive programming).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strategy.bounds.crossings import Crossings
from strategy.bounds.inequality import Inequality
from strategy.bounds.linear_step import longest_path, memory_rows
from strategy.bounds.multipliers import MOST_BYTES, MOST_NS, Path
from strategy.bounds.point import BYTES, MESSAGES, SIZE, FloatArray
from strategy.bounds.template_cut import TemplateCut
from strategy.layout.config import PlanConfig
from strategy.layout.step_times import TICKS, Overlap
from strategy.search.template.likely_memory import IntArray, likely_rows

UNITS = np.concatenate([np.full(BYTES.start, 1e6), np.full(SIZE - BYTES.start, 2.0**20)])
"""Milliseconds and MiB: what the program counts in."""
MOST = np.concatenate([np.full(BYTES.start, MOST_NS), np.full(SIZE - BYTES.start, MOST_BYTES)]) / UNITS
CLOSE = 1e-5
"""By this part of it a bound is lowered: more than a linear program errs by."""
MOST_PATHS = 40
"""So many paths more are looked for at a time."""
MOST_KNOWN, BINDING = 6, 1e-6
"""So many paths of other programs are tried first, of those that had more than such a share."""
LEAST_SHARE = 1e-6
"""Of layers that are treated in a way, for it to have a point."""
NO_PRICE = 1e-9
"""By what part of the largest dual price the program errs: what is less is none."""
BEYOND, FORBIDDING = 10.0, 1e6
"""What it costs, in steps, to hold twice the memory that there is; and where nothing may be held beyond it."""


@dataclass(frozen=True, slots=True, eq=False)
class DualPrices:
    """The dual prices of a linear program: of paths (their shares), of rows of memory, and of what is known."""

    paths: tuple[tuple[Path, float], ...]
    memory: tuple[float, ...]
    known: tuple[tuple[tuple[Known, float], ...], ...]
    """Of each way to treat the layers between."""

    @property
    def reasons(self) -> list[Known]:
        """All that has a price."""
        return [why for of_way in self.known for why, _ in of_way]


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """What a configuration takes at least, None if nothing fits; and the prices that say so.

    Attributes:
        step_ns: of a step.
        weights: (SIZE,), what each coordinate of a point counts in the step, in nanoseconds.
        prices: that say so.
        shares: (ways,) of the layers between that are treated in each way.
        points: (ways, SIZE) of each way, in nanoseconds and bytes, at which nothing takes less.
    """

    step_ns: int | None
    weights: FloatArray
    prices: DualPrices | None = None
    shares: tuple[float, ...] = (1.0,)
    points: FloatArray = field(default_factory=lambda: np.zeros((1, SIZE)))


Known = int | TemplateCut
"""Why an inequality holds: the place of a closed form, or a template's cut."""


@dataclass(slots=True, eq=False)
class WayCuts:
    """What is known of one way to treat the layers between.

    Attributes:
        least: (SIZE,), the least of every coordinate alone, in `UNITS`.
        cuts: weights and value of each.
        known: of every cut, why it holds, and what it was divided by.
    """

    least: FloatArray
    cuts: list[tuple[FloatArray, float]] = field(default_factory=list)
    known: list[tuple[Known, float]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Program:
    """The linear program of one configuration, which grows row by row."""

    solver: Any
    points: list[list[Any]]
    """Of each way, times its share."""
    shares: list[Any]
    """Of each way, where there are several."""
    step: Any
    memory: list[tuple[Any, FloatArray]] = field(default_factory=list)
    paths: list[tuple[Any, FloatArray, Path]] = field(default_factory=list)
    cuts: list[list[Any]] = field(default_factory=list)
    """Of each way."""
    has_prices: bool = False
    """Whether the last solution has any: now and then the solver gives up."""
    values: FloatArray = field(default_factory=lambda: np.zeros((1, SIZE)))
    """(ways, SIZE): the points of the last solution, times their shares."""

    @staticmethod
    def of(ways: Sequence[WayCuts], rows: FloatArray, limits: FloatArray) -> _Program:
        """Least `step` over points of at least what is the least in every way, in what `rows` leave."""
        from ortools.linear_solver import pywraplp

        # GLOP gives up on some of these programs, and cycles on others.
        solver = pywraplp.Solver.CreateSolver("CLP")
        points, several = list[list[Any]](), len(ways) > 1
        for way in ways:
            ends = zip(way.least.tolist(), np.maximum(MOST, 2 * way.least).tolist(), strict=True)
            points.append([solver.NumVar(0.0 if several else low, high, "") for low, high in ends])
        shares = [solver.NumVar(0.0, 1.0, "") for _ in ways] if several else []
        step = solver.NumVar(0.0, solver.infinity(), "")
        solver.Objective().SetCoefficient(step, 1.0)
        solver.Objective().SetMinimization()
        program = _Program(solver, points, shares, step, cuts=[[] for _ in ways])
        if several:
            whole = solver.Constraint(1.0, 1.0)
            for share, way, point in zip(shares, ways, points, strict=True):
                whole.SetCoefficient(share, 1.0)
                for at in np.flatnonzero(way.least).tolist():
                    row = solver.Constraint(0.0, solver.infinity())
                    row.SetCoefficient(point[at], 1.0)
                    row.SetCoefficient(share, -float(way.least[at]))
        for row, limit in zip(rows, limits, strict=True):
            held = solver.Constraint(-solver.infinity(), float(limit))
            program._fill(held, row)
            program.memory.append((held, row))
        return program

    def _fill(self, row: Any, numbers: FloatArray) -> None:
        """Of the mean of all ways."""
        for point in self.points:
            for at in np.flatnonzero(numbers).tolist():
                row.SetCoefficient(point[at], float(numbers[at]))

    def add_path(self, path: Path, counts: FloatArray) -> None:
        """The step takes no less than a path."""
        row = self.solver.Constraint(-self.solver.infinity(), 0.0)
        self._fill(row, counts)
        row.SetCoefficient(self.step, -1.0)
        self.paths.append((row, counts, path))

    def add_mixes(self, points: Sequence[Sequence[FloatArray]]) -> None:
        """No point but mixes of some of each way."""
        for way, (coordinates, among) in enumerate(zip(self.points, points, strict=True)):
            one = self.solver.Constraint(0.0, 0.0) if self.shares else self.solver.Constraint(1.0, 1.0)
            if self.shares:
                one.SetCoefficient(self.shares[way], -1.0)
            parts = [self.solver.NumVar(0.0, self.solver.infinity(), "") for _ in among]
            for part in parts:
                one.SetCoefficient(part, 1.0)
            for at, coordinate in enumerate(coordinates):
                row = self.solver.Constraint(0.0, self.solver.infinity())
                row.SetCoefficient(coordinate, 1.0)
                for part, point in zip(parts, among, strict=True):
                    row.SetCoefficient(part, -float(point[at]))

    def maximise(self, weights: FloatArray, step_ms: float) -> None:
        """Most of a weighted sum, (SIZE,), of what takes no longer, in place of the least step."""
        objective = self.solver.Objective()
        objective.Clear()
        for point in self.points:
            for at in np.flatnonzero(weights).tolist():
                objective.SetCoefficient(point[at], float(weights[at]))
        objective.SetMaximization()
        self.step.SetUb(step_ms)

    def allow_beyond(self, price: float) -> None:
        """Let more be held than there is, at a price for each unit."""
        beyond = self.solver.NumVar(0.0, self.solver.infinity(), "")
        self.solver.Objective().SetCoefficient(beyond, price)
        for held, _ in self.memory:
            held.SetCoefficient(beyond, -1.0)

    def add_cuts(self, ways: Sequence[WayCuts]) -> None:
        """Add those that are new."""
        for i, (way, cuts, point) in enumerate(zip(ways, self.cuts, self.points, strict=True)):
            for numbers, value in way.cuts[len(cuts) :]:
                row = self.solver.Constraint(0.0 if self.shares else float(value), self.solver.infinity())
                for at in np.flatnonzero(numbers).tolist():
                    row.SetCoefficient(point[at], float(numbers[at]))
                if self.shares:
                    row.SetCoefficient(self.shares[i], -float(value))
                cuts.append(row)

    def solve(self) -> tuple[float, FloatArray] | None:
        """(the least step, the point of it); None where nothing fits."""
        from ortools.linear_solver import pywraplp

        status = self.solver.Solve()
        self.has_prices = status == pywraplp.Solver.OPTIMAL
        if status == pywraplp.Solver.INFEASIBLE:
            return None
        if status != pywraplp.Solver.OPTIMAL:
            return 0.0, np.sum([[variable.lb() for variable in point] for point in self.points], axis=0)
        self.values = np.array([[variable.solution_value() for variable in point] for point in self.points])
        return self.step.solution_value(), self.values.sum(axis=0)

    def binding_paths(self) -> list[tuple[Path, FloatArray]]:
        """The paths that the last solution has shares of."""
        if not self.has_prices:
            return []
        return [(path, counts) for row, counts, path in self.paths if row.dual_value() < -BINDING]

    def mix(self) -> tuple[float, ...]:
        """Of every way, in the last solution."""
        if not self.shares or not self.has_prices:
            return (1.0,) * len(self.points)
        return tuple(share.solution_value() for share in self.shares)

    def weights(self) -> FloatArray:
        """(SIZE,): what the coordinates count, by the dual prices of paths and memory."""
        found = np.zeros(SIZE)
        if self.has_prices:
            for rows in (self.memory, [(row, counts) for row, counts, _ in self.paths]):
                priced = [(-row.dual_value(), numbers) for row, numbers in rows]
                least = NO_PRICE * max((price for price, _ in priced), default=0.0)
                for price, numbers in priced:
                    found += price * numbers if price > least else 0.0
        return found


@dataclass(slots=True)
class KnownPaths:
    """Paths that have bounded steps: those of the same chunks in the same order are the first to be tried again."""

    latest: dict[object, list[tuple[Path, FloatArray]]] = field(default_factory=dict)

    def of(self, config: PlanConfig, overlap: Overlap, crossings: Crossings) -> list[tuple[Path, FloatArray]]:
        """Paths with how often they pass everything, the latest first."""
        return self.latest.setdefault((config.pipeline, overlap, crossings), [])

    def take(
        self, config: PlanConfig, overlap: Overlap, crossings: Crossings, found: Sequence[tuple[Path, FloatArray]]
    ) -> None:
        """Remember some."""
        known = {counts.tobytes(): (path, counts) for path, counts in (*found, *self.of(config, overlap, crossings))}
        self.latest[config.pipeline, overlap, crossings] = list(known.values())[:MOST_KNOWN]


@dataclass(slots=True)
class OuterApproximation:
    """Cuts on the points of one mesh and micro-batch; what is known of its configurations."""

    layers: int
    limit_bytes: int
    overlap: Overlap
    crossings: Crossings
    ways: tuple[WayCuts, ...]
    paths: KnownPaths = field(default_factory=KnownPaths)
    programs: dict[tuple[PlanConfig, float | None], _Program] = field(default_factory=dict)
    """Of bounds; and of what is likely, with so many bytes beside."""

    @staticmethod
    def of(
        layers: int,
        limit_bytes: int,
        ways: Sequence[tuple[FloatArray, Sequence[Inequality]]],
        overlap: Overlap,
        crossings: Crossings,
        paths: KnownPaths | None = None,
    ) -> OuterApproximation:
        """What closed forms say.

        Args:
            layers: of the model.
            limit_bytes: of a device.
            ways: of each way to treat the layers between, (SIZE,) the least of every coordinate alone, in nanoseconds
                and bytes, and inequalities that hold.
            overlap: how communication runs beside computation.
            crossings: how stages lie.
            paths: that are known, of whatever configurations.
        """
        each = tuple(WayCuts(least / UNITS) for least, _ in ways)
        found = OuterApproximation(layers, limit_bytes, overlap, crossings, each, paths or KnownPaths())
        for way, (_, forms) in enumerate(ways):
            for at, form in enumerate(forms):
                found.add_cut(form, at, way)
        return found

    def add_cut(self, inequality: Inequality, why: Known, way: int = 0) -> None:
        """Take note of an inequality that says something of a way."""
        numbers = inequality.weights * UNITS
        size = float(numbers.max())
        if not size:
            return
        self.ways[way].cuts.append((numbers / size, inequality.least / size))
        self.ways[way].known.append((why, size))

    @property
    def count(self) -> int:
        """How many cuts there are."""
        return sum(len(way.cuts) for way in self.ways)

    @property
    def _least(self) -> FloatArray:
        """(SIZE,) of every coordinate alone, in any way."""
        least: FloatArray = np.min([way.least for way in self.ways], axis=0)
        return least

    def bound(self, config: PlanConfig, *, exact: bool = True, enough_ns: float = math.inf) -> Bound:
        """What a configuration takes at least, whatever fits.

        Args:
            config: of those that the cuts are for.
            exact: whether all paths count, or those that are found at once.
            enough_ns: no further paths are looked for once it takes so much.
        """
        return self._within(config, memory_rows(config, self.layers), None, exact=exact, enough_ns=enough_ns)

    def likely(self, config: PlanConfig, more_bytes: float) -> Bound:
        """A guess at what a configuration takes at least, whatever is likely to fit.

        Args:
            config: of those that the cuts are for.
            more_bytes: that are held beside those that `likely_rows` count.
        """
        return self._within(config, likely_rows(config, self.layers), more_bytes, exact=False)

    def _within(
        self,
        config: PlanConfig,
        rows: IntArray,
        more_bytes: float | None,
        *,
        exact: bool,
        enough_ns: float = math.inf,
    ) -> Bound:
        """The least step in what the rows leave; a program is kept for every number of bytes beside these."""
        program = self.programs.get((config, more_bytes))
        if program is None:
            limits = np.full(len(rows), self._limit - (more_bytes or 0.0) / UNITS[-1])
            limits = np.maximum(limits, 0.0)
            program = self.programs[config, more_bytes] = _Program.of(self.ways, rows.astype(np.float64), limits)
            self._begin(program, config, self._least, exact=False)
        program.add_cuts(self.ways)
        return self._within_paths(program, config, exact=exact, enough_ns=enough_ns)

    def _begin(self, program: _Program, config: PlanConfig, point: FloatArray, *, exact: bool) -> None:
        """With the paths that are known; where none is, the longest of a point."""
        known = self.paths.of(config, self.overlap, self.crossings)
        for path, counts in known or [self._longest(config, point, exact=exact)]:
            program.add_path(path, counts)

    def enough(self, config: PlanConfig, weights: FloatArray, step_ns: float) -> float | None:
        """A cut with these weights, (SIZE,), which says so much bounds a configuration by a step of `step_ns`.

        It is the most that what takes no longer weighs; None where nothing does, or layers may be treated in several
        ways.
        """
        if len(self.ways) > 1 or not weights.any():
            return None
        program = _Program.of(self.ways, *self._memory(config))
        numbers = weights * UNITS
        size = float(numbers.max())
        program.maximise(numbers / size, step_ns / UNITS[0])
        self._begin(program, config, self._least, exact=False)
        program.add_cuts(self.ways)
        most = len(program.paths) + MOST_PATHS
        while True:
            solved = program.solve()
            if solved is None or not program.has_prices:
                return None
            path, counts = self._longest(config, solved[1], exact=True)
            if counts @ solved[1] * UNITS[0] <= step_ns * (1 + 1e-4) or len(program.paths) >= most:
                return size * float(program.solver.Objective().Value())
            program.add_path(path, counts)

    def mixed(self, config: PlanConfig, points: Sequence[Sequence[FloatArray]]) -> Bound:
        """What a configuration takes at least among mixes of points that are known, (SIZE,) in nanoseconds and bytes.

        Points, of each way, may be of some coordinates alone, zero elsewhere. No cut on these raises the bound above
        that, before there is a new point; its prices are where to look for one. What mixes hold beyond the memory makes
        a step longer.
        """
        rows, limits = self._memory(config)
        program = _Program.of(self.ways, rows, limits)
        every = [point for of_way in points for point in of_way]
        longest_ms = max(self.step_ns(config, point) for point in every) / UNITS[0]
        program.add_mixes([[point / UNITS for point in of_way] for of_way in points])
        program.allow_beyond(BEYOND * longest_ms / float(limits.min()))
        self._begin(program, config, every[-1] / UNITS, exact=True)
        program.add_cuts(self.ways)
        return self._within_paths(program, config, exact=True)

    def _within_paths(
        self, program: _Program, config: PlanConfig, *, exact: bool, enough_ns: float = math.inf
    ) -> Bound:
        """The least step, by as many paths as it takes."""
        most = len(program.paths) + MOST_PATHS
        while True:
            solved = program.solve()
            if solved is None:
                return Bound(None, np.zeros(SIZE))
            step_ms, point = solved
            if program.has_prices and step_ms * UNITS[0] * (1 - CLOSE) >= enough_ns:
                break
            path, counts = self._longest(config, point, exact=exact)
            if counts @ point <= step_ms * (1 + 1e-4) or len(program.paths) >= most:
                break
            program.add_path(path, counts)
        self.paths.take(config, self.overlap, self.crossings, program.binding_paths())
        weights = program.weights() / UNITS * UNITS[0]
        least_ms = program.solver.Objective().Value() if program.has_prices else step_ms
        shares = program.mix()
        points = program.values / np.maximum(shares, LEAST_SHARE)[:, None] * UNITS
        return Bound(int(least_ms * UNITS[0] * (1 - CLOSE)), weights, self._prices(program), shares, points)

    def why_nothing_fits(self, config: PlanConfig) -> DualPrices | None:
        """DualPrices at which what a configuration holds beyond the memory makes its step longer than any."""
        rows, limits = self._memory(config)
        program = _Program.of(self.ways, rows, limits)
        path, counts = self._longest(config, self._least, exact=False)
        program.allow_beyond(FORBIDDING * float(counts @ self._least) / float(limits.min()))
        program.add_path(path, counts)
        program.add_cuts(self.ways)
        program.solve()
        return self._prices(program)

    def _prices(self, program: _Program) -> DualPrices | None:
        """Per nanosecond and byte; those that are zero are left out."""
        if not program.has_prices:
            return None
        paths = [(path, -row.dual_value()) for row, _, path in program.paths]
        known = []
        for rows, way in zip(program.cuts, self.ways, strict=True):
            cuts = [(row.dual_value(), *each) for row, each in zip(rows, way.known, strict=False)]
            known.append(tuple((why, price * UNITS[0] / size) for price, why, size in cuts if price > 0))
        return DualPrices(
            tuple((path, share) for path, share in paths if share > 0),
            tuple(max(-row.dual_value(), 0.0) * UNITS[0] / UNITS[-1] for row, _ in program.memory),
            tuple(known),
        )

    def step_ns(self, config: PlanConfig, point: FloatArray) -> float:
        """What a step of a configuration takes at least at a point, (SIZE,) in nanoseconds and bytes."""
        _, counts = self._longest(config, point / UNITS, exact=True)
        return float(counts @ (point / UNITS) * UNITS[0])

    def held_bytes(self, config: PlanConfig, point: FloatArray) -> float:
        """What the rows count at a point, of the stage that holds most."""
        held: list[float] = (memory_rows(config, self.layers) @ point).tolist()
        return max(held)

    def _longest(self, config: PlanConfig, point: FloatArray, *, exact: bool) -> tuple[Path, FloatArray]:
        """The longest path of a point in `UNITS`, or the longest straight one; how often it passes everything."""
        times_ns = np.clip(point * UNITS, 0, MOST_NS)[: MESSAGES.stop].astype(np.int64)  # a solution is not exact
        counts = longest_path(
            config, self.layers, times_ns, overlap=self.overlap, crossings=self.crossings, exact=exact
        )
        return Path(tuple(times_ns.tolist()), exact), counts / TICKS

    def _memory(self, config: PlanConfig) -> tuple[FloatArray, FloatArray]:
        """Rows of what the first and the last stage hold, without and with sums of gradients; their limits."""
        rows = memory_rows(config, self.layers).astype(np.float64)
        return rows, np.full(len(rows), self._limit)

    @property
    def _limit(self) -> float:
        """Of a device, in `UNITS`."""
        return self.limit_bytes / float(UNITS[-1]) * (1 + CLOSE)
