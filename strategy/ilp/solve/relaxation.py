"""Relaxation: the arrays that messages are passed over, with all nodes and with those that can be joined away.

Shapes: N nodes of the full arrays, K of them in the relaxed ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.ilp.solve.core import Core, IntArray
from strategy.ilp.solve.descent import minimise_conditionally
from strategy.ilp.solve.joins import Join, find_joins
from strategy.ilp.solve.packed_arrays import PackedArrays, as_floats, pack


@dataclass(frozen=True, slots=True)
class PackedCore:
    """A core, its working copy in floats, and its id of each of the arrays' nodes."""

    core: Core
    arrays: PackedArrays
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """`relaxed` is `full` with joins in place of the nodes that are joined away; they are one where none is.

    `exact` are the arrays of `relaxed` in integers; `kept` (K,) and `joined_away` (N - K,) are positions in `full`.
    """

    full: PackedCore
    relaxed: PackedCore
    exact: PackedArrays
    joins: tuple[Join, ...]
    kept: IntArray
    joined_away: IntArray

    def complete(self, picks: IntArray) -> IntArray:
        """The choice of all nodes, (N,), that follows from one of the relaxed ones, (K,)."""
        full = np.zeros(len(self.full.nodes), np.int64)
        full[self.kept] = picks
        minimise_conditionally(self.full.arrays, self.joined_away, full)
        return full


def pack_core(core: Core, rank: IntArray) -> PackedCore:
    """The arrays of a core in floats; `rank` (ids,) orders the nodes."""
    exact, nodes = pack(core, rank)
    return PackedCore(core, as_floats(exact), nodes)


def relax(core: Core, rank: IntArray, join_width: int = 0) -> Relaxation:
    """Both views of a core, with joins of that width."""
    joins = find_joins(core, join_width)
    exact, nodes = pack(core, rank, joins)
    relaxed = PackedCore(core, as_floats(exact), nodes)
    full = pack_core(core, rank) if joins else relaxed
    inside = np.isin(np.array(full.nodes, np.int64), np.array(nodes, np.int64))
    return Relaxation(full, relaxed, exact, joins, np.flatnonzero(inside), np.flatnonzero(~inside))
