"""Chains of boxing steps: the cheapest way from any layout of a tensor to any other on one placement.

Shortest paths over all layouts at once (Floyd 1962, Warshall 1962); the single steps are those of `boxing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import SbpError
from strategy.comm.boxing import Bools, BoxingStep, Floats, LayoutSteps, Price, StepTable, layouts_of, steps_among
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, Owner, Reduce, Sbp, Split, format_nd, reductions
from strategy.sbp.tensor import TensorSpec


@dataclass(slots=True)
class Boxing:
    """All conversions of tensors on one placement, priced: shortest paths over layouts (Floyd 1962, Warshall 1962).

    A table knows sums and splits in order; where a conversion is about a maximum, a minimum, a rotated split or
    an owner, a larger one is made for it.
    """

    placement: Placement
    price: Price
    tables: dict[TensorSpec, dict[_Beyond, _Table]] = field(default_factory=dict)
    usual: dict[TensorSpec, StepTable] = field(default_factory=dict)
    """The steps of the table that knows sums and splits in order."""

    def seconds(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> float:
        """Price of the cheapest chain; infinite where there is none.

        Raises:
            SbpError: a side is no legal layout.
        """
        table, here, there = self._table_of(spec, source, target)
        return float(table.seconds[here, there])

    def all_seconds(
        self, spec: TensorSpec, sources: Sequence[NdSbp], targets: Sequence[NdSbp], budget: Budget = UNLIMITED
    ) -> Floats:
        """(sources, targets): `seconds` between several layouts.

        Raises:
            OutOfTimeError: the time ran out; on four axes a table takes seconds.
        """
        tables = self._tables(spec, budget)
        usual = tables[_USUAL]
        here, there = ([_known(layout) for layout in side] for side in (sources, targets))
        rows, columns = ([usual.index.get(layout, -1) for layout in side] for side in (here, there))
        found = usual.seconds[np.ix_(rows, columns)]
        for i, row in enumerate(rows):
            for j in range(len(columns)) if row < 0 else [j for j, column in enumerate(columns) if column < 0]:
                table = self._table_with(spec, tables, _both(here[i].beyond, there[j].beyond), budget)
                found[i, j] = table.seconds[self._index(spec, table, here[i]), self._index(spec, table, there[j])]
        return found

    def reaches(self, spec: TensorSpec, sources: Sequence[NdSbp], targets: Sequence[NdSbp]) -> Bools:
        """(sources, targets): whether there is a chain; what it costs is not worked out for that."""
        if spec not in self.tables:
            if spec not in self.usual:
                self.usual[spec] = steps_among(tuple(layouts_of(spec, self.placement.mesh)), self.placement.mesh)
            index, _ = _places(self.usual[spec].among)
            rows, columns = ([index.get(_known(layout), -1) for layout in side] for side in (sources, targets))
            if min(rows) >= 0 and min(columns) >= 0:
                return _reach(self.usual[spec].among)[np.ix_(rows, columns)]
        return np.isfinite(self.all_seconds(spec, sources, targets))

    def chain(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[BoxingStep, ...]:
        """The cheapest chain of steps.

        Raises:
            SbpError: no chain leads there, or a side is no legal layout.
        """
        table, here, there = self._table_of(spec, source, target)
        if table.seconds[here, there] == math.inf:
            raise SbpError("no boxing leads there", got=f"{format_nd(source)} to {format_nd(target)} of {spec.shape}")
        steps = []
        while here != there:
            following = int(table.following[here, there])
            steps.append(table.steps[here, following])
            here = following
        return tuple(steps)

    def _table_of(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[_Table, int, int]:
        """The table that knows both layouts, and where they stand in it.

        Raises:
            SbpError: a side is no legal layout.
        """
        tables, before, after = self._tables(spec), _known(source), _known(target)
        table = tables[_USUAL]
        here, there = table.index.get(before, -1), table.index.get(after, -1)
        if here < 0 or there < 0:
            table = self._table_with(spec, tables, _both(before.beyond, after.beyond))
            here, there = self._index(spec, table, before), self._index(spec, table, after)
        return table, here, there

    def _index(self, spec: TensorSpec, table: _Table, layout: _Layout) -> int:
        """Where a layout stands in a table."""
        if layout not in table.index:
            got = f"{format_nd(layout.nd_sbp)} of {spec.dtype} {spec.shape} on mesh {self.placement.mesh}"
            raise SbpError("not a legal layout", got=got)
        return table.index[layout]

    def _tables(self, spec: TensorSpec, budget: Budget = UNLIMITED) -> dict[_Beyond, _Table]:
        found = self.tables.get(spec)
        if found is None:
            found = {}
            self._table_with(spec, found, _USUAL, budget)
            self.tables[spec] = found
        return found

    def _table_with(
        self, spec: TensorSpec, tables: dict[_Beyond, _Table], beyond: _Beyond, budget: Budget = UNLIMITED
    ) -> _Table:
        found = tables.get(beyond)
        if found is None:
            reduces, special = beyond
            layouts = layouts_of(spec, self.placement.mesh, reduces=reduces, special=special)
            steps = steps_among(tuple(layouts), self.placement.mesh)
            found = tables[beyond] = _cheapest(spec, steps, self.price, budget)
        return found


_Special = tuple[tuple[Sbp, ...], ...]
"""Rotated splits and owners, by axis; empty where there are none."""
_Beyond = tuple[frozenset[Reduce], _Special]
"""What a table knows: reductions, and special layouts."""
_USUAL: _Beyond = (frozenset({Reduce.SUM}), ())


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """A layout, of which there is one object (`_known`), and what a table needs to know of it."""

    nd_sbp: NdSbp
    beyond: _Beyond


@cache
def _known(layout: NdSbp) -> _Layout:
    special = tuple(
        (sbp,) if isinstance(sbp, Owner) or (isinstance(sbp, Split) and sbp.shift) else () for sbp in layout
    )
    return _Layout(layout, (_USUAL[0] | reductions(layout), special if any(special) else ()))


def _both(one: _Beyond, other: _Beyond) -> _Beyond:
    """What a table needs to know of a conversion."""
    if one is other:
        return one
    if not one[1] or not other[1]:
        return one[0] | other[0], one[1] or other[1]
    pairs = zip(one[1], other[1], strict=True)
    return one[0] | other[0], tuple(tuple(dict.fromkeys((*mine, *its))) for mine, its in pairs)


@dataclass(frozen=True, slots=True)
class _Table:
    index: Mapping[_Layout, int]
    steps: Mapping[tuple[int, int], BoxingStep]
    seconds: Floats
    following: npt.NDArray[np.int16]
    """The layout that a chain goes to first."""


@lru_cache(maxsize=256)
def _places(steps: LayoutSteps) -> tuple[Mapping[_Layout, int], Mapping[tuple[int, int], BoxingStep]]:
    """Where every layout stands in a table, and every step."""
    pairs = zip(steps.sources.tolist(), steps.targets.tolist(), strict=True)
    index = {_known(layout): i for i, layout in enumerate(steps.layouts)}
    return index, dict(zip(pairs, steps.steps, strict=True))


@lru_cache(maxsize=256)
def _reach(steps: LayoutSteps) -> Bools:
    """(layouts, layouts): whether steps lead from one to the other (Warshall 1962)."""
    found = np.eye(len(steps.layouts), dtype=bool)
    found[steps.sources, steps.targets] = True
    for via in range(len(found)):
        found |= found[:, via, None] & found[via]
    return found


def _cheapest(spec: TensorSpec, steps: StepTable, price: Price, budget: Budget) -> _Table:
    budget.check()
    count = len(steps.layouts)
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    following = np.tile(np.arange(count, dtype=np.int16), (count, 1))
    seconds[steps.sources, steps.targets] = price(spec, steps)
    for via in range(count):
        budget.check()
        through = seconds[:, via, None] + seconds[via]
        shorter = through < seconds
        np.copyto(seconds, through, where=shorter)
        np.copyto(following, following[:, via, None], where=shorter)
    index, between = _places(steps.among)
    return _Table(index, between, seconds, following)
