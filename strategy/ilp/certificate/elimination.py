"""The exact minimum of a working problem with given node costs, by bucket elimination (Dechter 1999).

Each node's bucket joins the tables and messages that mention it and no node before it; its minimum over the node is a
message to the bucket of the next node of its scope. What a bucket is beside the cheapest rest gives the minima by
choice. All entries are made >= 0 first, hence sums of a bucket neither wrap around nor turn legal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.proof import IntArray
from strategy.ilp.certificate.working import Working, legal

# Cells of all buckets together: 256 MB.
MAX_CELLS = 1 << 25
MAX_SCOPE = 60


@dataclass(frozen=True, slots=True)
class CheckedBucket:
    """`joined` has the nodes of `scope` as its axes, the bucket's own node last; `message` is its minimum over it."""

    scope: tuple[int, ...]
    joined: IntArray
    message: IntArray


@dataclass(frozen=True, slots=True)
class CheckedElimination:
    """All buckets in order; a total is `constant` plus an entry."""

    buckets: tuple[CheckedBucket, ...]
    constant: int
    infinite: int

    @property
    def minimum(self) -> int | None:
        """The least total; None if nothing is legal."""
        numbers = [int(bucket.message) for bucket in self.buckets if bucket.message.ndim == 0]
        return None if max(numbers, default=0) >= self.infinite else self.constant + sum(numbers)

    def by_choice(self) -> dict[int, IntArray]:
        """The least total of what takes each choice of each node, less `constant`."""
        numbers = sum(int(bucket.message) for bucket in self.buckets if bucket.message.ndim == 0)
        whole: dict[int, tuple[tuple[int, ...], IntArray]] = {}
        minima: dict[int, IntArray] = {}
        for bucket in reversed(self.buckets):
            *above, node = bucket.scope
            if self.minimum is None:
                minima[node] = np.full(bucket.joined.shape[-1], self.infinite)
                continue
            if above:
                scope, beliefs = whole[above[-1]]
                gone = tuple(axis for axis, other in enumerate(scope) if other not in above)
                rest = beliefs.min(axis=gone) - bucket.message
                outside = np.where(bucket.message >= self.infinite, self.infinite, rest)
            else:
                outside = np.array(numbers - int(bucket.message))
            belief = np.minimum(bucket.joined + outside[..., None], self.infinite)
            whole[node] = bucket.scope, belief
            minima[node] = belief.min(axis=tuple(range(len(above))))
        return minima


def eliminate(
    work: Working, costs: Mapping[int, IntArray], order: IntArray, bits: int, *, infinite: int
) -> CheckedElimination:
    """Eliminates every live node in `order`, with tables in units of 2^-bits.

    Args:
        work: whose tables to add.
        costs: of the nodes, in units of 2^-bits, forbidden ones `infinite`.
        order: every live node, once.
        bits: the scale.
        infinite: what forbidden entries are; twice as much does not overflow.

    Raises:
        CertificateError: another order, too many cells, or numbers too large to be added exactly.
    """
    nodes = order.tolist()
    if sorted(nodes) != sorted(work.costs):
        raise CertificateError("an elimination order that is not one of the live nodes")
    position = {node: k for k, node in enumerate(nodes)}
    constant, headroom = 0, 0
    factors: list[list[tuple[tuple[int, ...], IntArray]]] = [[] for _ in nodes]

    def enter(scope: tuple[int, ...], entries: IntArray) -> None:
        nonlocal constant, headroom
        finite = entries[entries < infinite]
        lowest = int(finite.min()) if finite.size else 0
        headroom += int(finite.max()) - lowest if finite.size else 0
        constant += lowest
        shifted = np.where(entries >= infinite, infinite, entries - lowest)
        factors[min(position[node] for node in scope)].append((scope, shifted))

    for node, cost in costs.items():
        enter((node,), cost)
    for one, other in work.pairs():
        table = work.tables[one][other]
        finite = np.where(legal(table), table, 0)
        if (max(int(finite.max(initial=0)), -int(finite.min(initial=0))) << bits) >= infinite:
            raise CertificateError("the scale is too fine for exact sums", got=bits)
        enter((one, other), np.where(legal(table), finite << bits, infinite))
    if headroom >= infinite:
        raise CertificateError("the scale is too fine for exact sums", got=bits)
    buckets: list[CheckedBucket] = []
    cells = 0
    for k, node in enumerate(nodes):
        members = {other for scope, _ in factors[k] for other in scope}
        scope = tuple(sorted(members, key=position.__getitem__, reverse=True))
        shape = [costs[other].size for other in scope]
        cells += int(np.prod(shape, dtype=object))
        if cells > MAX_CELLS or len(scope) > MAX_SCOPE:
            raise CertificateError(
                "an elimination that is too wide", where=f"node {node}", expected=f"{MAX_CELLS} cells"
            )
        joined = np.zeros(shape, np.int64)
        for axes, entries in factors[k]:
            np.minimum(joined + _aligned(axes, entries, scope), infinite, out=joined)
        message = np.asarray(joined.min(axis=-1, initial=infinite))
        buckets.append(CheckedBucket(scope, joined, message))
        if len(scope) > 1:
            factors[position[scope[-2]]].append((scope[:-1], message))
        factors[k].clear()
    return CheckedElimination(tuple(buckets), constant, infinite)


def _aligned(axes: tuple[int, ...], entries: IntArray, scope: tuple[int, ...]) -> IntArray:
    """`entries`, whose axes are some of `scope`, as something that broadcasts over `scope`."""
    turn = sorted(range(len(axes)), key=lambda axis: scope.index(axes[axis]))
    shape = [entries.shape[axes.index(node)] if node in axes else 1 for node in scope]
    return entries.transpose(turn).reshape(shape)
