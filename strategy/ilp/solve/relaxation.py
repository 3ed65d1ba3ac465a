"""Where an ascent works: the arrays of a core as they are, and with what can be joined away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.ilp.solve.core import Core, IntArray
from strategy.ilp.solve.descent import settle
from strategy.ilp.solve.joins import Join, find_joins
from strategy.ilp.solve.packed_arrays import Flat, flatten, in_floats


@dataclass(frozen=True, slots=True)
class Place:
    """A core, its arrays in floats, and its id of each of their nodes."""

    core: Core
    flat: Flat
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """`inner` is `whole` without what is joined away; they are one where nothing is.

    `exact` are the arrays of `inner` in integers; `kept` and `joined` are positions in `whole`.
    """

    whole: Place
    inner: Place
    exact: Flat
    joins: tuple[Join, ...]
    kept: IntArray
    joined: IntArray

    def completed(self, picks: IntArray) -> IntArray:
        """The choice of all nodes that follows from one of the inner ones."""
        full = np.zeros(len(self.whole.nodes), np.int64)
        full[self.kept] = picks
        settle(self.whole.flat, self.joined, full)
        return full


def place_of(core: Core, rank: IntArray) -> Place:
    """The arrays of a core in floats."""
    exact, nodes = flatten(core, rank)
    return Place(core, in_floats(exact), nodes)


def relax(core: Core, rank: IntArray, width: int = 0) -> Relaxation:
    """Both views of a core, with joins of that width."""
    joins = find_joins(core, width)
    exact, nodes = flatten(core, rank, joins)
    inner = Place(core, in_floats(exact), nodes)
    whole = place_of(core, rank) if joins else inner
    inside = np.isin(np.array(whole.nodes, np.int64), np.array(nodes, np.int64))
    return Relaxation(whole, inner, exact, joins, np.flatnonzero(inside), np.flatnonzero(~inside))
