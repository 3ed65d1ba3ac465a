"""Hierarchical collectives: a collective over a group that spans nodes, in parts inside the nodes and between them.

With n nodes of m ranks each, rank j of a node works with the other ranks of its node and with rank j of every other
node. Bytes that a rank sends, T being those of the tensor that the group holds:

                     inside the node       between nodes             inside the node
    all-reduce       T (m - 1) / m         2 T / m (n - 1) / n       T (m - 1) / m
    reduce-scatter   T (m - 1) / m         T / m (n - 1) / n
    all-gather                             T / (n m) (n - 1)         T / m (m - 1)

where a flat collective sends all of 2 T, T and T times (n m - 1) / (n m) at the pace of the links between nodes
(Goyal et al. 2017, arXiv:1706.02677, section 4). Cuts are balanced, so all of it holds for uneven ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import balanced_split
from strategy.sbp.tensor import Box

PARTS: Mapping[ActKind, tuple[tuple[ActKind, str], ...]] = {
    ActKind.ALL_REDUCE: (
        (ActKind.REDUCE_SCATTER, "intra"),
        (ActKind.ALL_REDUCE, "inter"),
        (ActKind.ALL_GATHER, "intra"),
    ),
    ActKind.REDUCE_SCATTER: ((ActKind.REDUCE_SCATTER, "intra"), (ActKind.REDUCE_SCATTER, "inter")),
    ActKind.ALL_GATHER: ((ActKind.ALL_GATHER, "inter"), (ActKind.ALL_GATHER, "intra")),
}
"""Kind of a collective -> the collectives that it is made of on two levels, in order, with the level of each."""


def nodes_of(cluster: Cluster, group: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The ranks of a group by node; empty unless there are several nodes, with equally many ranks each, at least 2."""
    found: dict[int, list[int]] = {}
    for rank in group:
        found.setdefault(rank // cluster.devices_per_node, []).append(rank)
    counts = {len(members) for members in found.values()}
    if len(found) < 2 or len(counts) > 1 or counts == {1}:
        return ()
    return tuple(tuple(members) for members in found.values())


def meets_inside(cluster: Cluster, group: tuple[int, ...]) -> bool:
    """Whether some ranks of a group share a node."""
    return any(cluster.level(pair) == "intra" for pair in pairwise(sorted(group)))


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """What the groups along some axes of a placement cross.

    `level` is the slowest level that any of them crosses: they all begin a step together and go on together.
    `per_node` ranks of every one of them share each of its nodes, and it may take two levels; 1 if it may not.
    """

    level: str
    per_node: int = 1

    @property
    def two_level(self) -> bool:
        """Whether every group may take two levels, all in the same way."""
        return self.per_node > 1


@lru_cache(maxsize=1024)
def span_of(cluster: Cluster, placement: Placement, axes: tuple[int, ...]) -> NodeSpan:
    """What the groups along `axes` cross."""
    node_of = np.array(placement.devices).reshape(placement.mesh) // cluster.devices_per_node
    ranks = math.prod(placement.mesh[axis] for axis in axes)
    groups = np.sort(np.moveaxis(node_of, axes, range(-len(axes), 0)).reshape(-1, ranks), axis=1)
    if (groups[:, 0] == groups[:, -1]).all():
        return NodeSpan("intra")
    nodes = 1 + int(np.count_nonzero(np.diff(groups[0])))
    if nodes == 1 or nodes == ranks or ranks % nodes:
        return NodeSpan("inter")
    by_node = groups.reshape(-1, nodes, ranks // nodes)
    apart = (by_node[:, 1:, 0] != by_node[:, :-1, 0]).all()
    is_even = apart and (by_node[..., 0] == by_node[..., -1]).all()
    return NodeSpan("inter", ranks // nodes if is_even else 1)


def by_node(cluster: Cluster, *placements: Placement) -> tuple[int, ...]:
    """The node of every rank, nodes numbered as they appear: what the levels between ranks depend on.

    In a cluster of several types, besides, the groups of the nodes of each placement.
    """
    numbers: dict[int, int] = {}
    ranks = (rank for placement in placements for rank in placement.devices)
    nodes = tuple(numbers.setdefault(rank // cluster.devices_per_node, len(numbers)) for rank in ranks)
    if not cluster.groups:
        return nodes
    return nodes + tuple(group for one in placements for group in (-1, *cluster.groups_of(one.devices)))


def position_in(nodes: tuple[tuple[int, ...], ...], rank: int) -> tuple[int, int]:
    """(node, place within it) of a rank."""
    node = next(k for k, members in enumerate(nodes) if rank in members)
    return node, nodes[node].index(rank)


def counterparts(task: BoxingTask, place: int) -> tuple[int, ...]:
    """Positions in the group of the ranks that stand at `place` of their nodes, by node."""
    return tuple(task.group.index(members[place]) for members in task.nodes)


@lru_cache(maxsize=16)
def part_sizes(kind: ActKind, task: BoxingTask) -> Mapping[int, tuple[int, ...]]:
    """Elements that every rank sends in each of the `PARTS` of a collective on two levels."""
    boxes = task.target_boxes if kind is ActKind.REDUCE_SCATTER else task.source_boxes
    sizes = dict(zip(task.group, map(box_size, boxes), strict=True))
    count, per_node = len(task.nodes), len(task.nodes[0])
    whole = box_size(task.source_boxes[0])
    pieces = balanced_split(0, whole, per_node)
    found: dict[int, tuple[int, ...]] = {}
    for place in range(per_node):
        peers = [members[place] for members in task.nodes]
        among = sum(sizes[rank] for rank in peers)
        parts = balanced_split(*pieces[place], count)
        for (low, high), rank in zip(parts, peers, strict=True):
            if kind is ActKind.ALL_REDUCE:
                piece, part = pieces[place][1] - pieces[place][0], high - low
                found[rank] = whole - piece, piece - part + part * (count - 1), piece * (per_node - 1)
            elif kind is ActKind.REDUCE_SCATTER:
                found[rank] = whole - among, among - sizes[rank]
            else:
                found[rank] = sizes[rank] * (count - 1), among * (per_node - 1)
    return found


def box_size(box: Box) -> int:
    """Elements of a piece."""
    size = 1
    for begin, end in box:
        size *= end - begin
    return size
