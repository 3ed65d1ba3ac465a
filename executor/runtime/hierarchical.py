"""Hierarchical collectives: inside nodes, and between the ranks at one place of all nodes.

What the parts are, `strategy.comm.hierarchical` says. All parts travel in the lane of the whole group, in which nothing
is handed to ranks that a part does not join.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from executor.runtime.pieces import Copies, Part, Requests, Start, piece_of, terms_of
from executor.runtime.transport.base import HostArray
from strategy.comm.hierarchical import box_size, counterparts, position_in
from strategy.program.program import ActKind
from strategy.sbp.sbp import balanced_split
from strategy.sbp.tensor import Box, box_shape


@dataclass(frozen=True, slots=True)
class _NodeGroups:
    """Who this rank works with in an act on two levels, by position in the group.

    `mates` are the ranks of its node, of which it is the one at `place`; `peers` those at the same place of all nodes,
    of which it is the one at `node`.
    """

    node: int
    place: int
    mates: tuple[int, ...]
    peers: tuple[int, ...]


def _node_groups(part: Part) -> _NodeGroups:
    task = part.task
    node, place = position_in(task.nodes, task.group[part.me])
    return _NodeGroups(node, place, tuple(map(task.group.index, task.nodes[node])), counterparts(task, place))


def _two_level_all_reduce(part: Part) -> Start:
    """Combine a flat piece inside the node and a part of it between nodes; gather both the same way back."""
    at = _node_groups(part)
    source, target = part.source.reshape(-1), part.target.reshape(-1)
    pieces = [slice(*cut) for cut in balanced_split(0, source.size, len(at.mates))]
    mine = pieces[at.place]
    parts = [slice(*cut) for cut in balanced_split(mine.start, mine.stop, len(at.peers))]
    piece, total = target[mine], target[parts[at.node]]
    own = part.scratch.get("own", total.shape, total.dtype)
    terms, sums = terms_of(part, source[mine], at.mates), terms_of(part, own, at.peers, "sum")
    inside = part.spread(at.mates, [source[p] for p in pieces])
    between = part.spread(at.peers, [target[p] for p in parts])
    gathered = part.spread(at.mates, [target[p] for p in pieces])
    totals, whole = part.spread(at.peers, [total] * len(parts)), part.spread(at.mates, [piece] * len(pieces))
    in_node, over_nodes = part.combiner(terms[1], piece), part.combiner(sums[1], total)

    def act() -> Requests:
        yield part.exchange(inside, terms[0])
        in_node()
        part.xp.copyto(own, total)
        yield part.exchange(between, sums[0])
        over_nodes()
        yield part.exchange(totals, between)
        yield part.exchange(whole, gathered)

    return act


def _two_level_reduce_scatter(part: Part) -> Start:
    """Combine inside the node what the ranks at one place of all nodes are to have; between nodes, the own target."""
    at, task = _node_groups(part), part.task
    wanted = [[task.target_boxes[p] for p in counterparts(task, place)] for place in range(len(at.mates))]
    bundles = [_bundle(part, part.source, part.frame, boxes, f"for.{j}") for j, boxes in enumerate(wanted)]
    memory = bundles[at.place][0]
    combined = part.scratch.get("combined", memory.shape, memory.dtype)
    sections = _sections(combined, wanted[at.place])
    terms, sums = terms_of(part, memory, at.mates), terms_of(part, sections[at.node], at.peers, "sum")
    inside, between = part.spread(at.mates, [memory for memory, _ in bundles]), part.spread(at.peers, sections)
    in_node, over_nodes = part.combiner(terms[1], combined), part.combiner(sums[1], part.target)

    def act() -> Requests:
        for _, copies in bundles:
            for piece, place in copies:
                part.xp.copyto(place, piece)
        yield part.exchange(inside, terms[0])
        in_node()
        yield part.exchange(between, sums[0])
        over_nodes()

    return act


def _two_level_all_gather(part: Part) -> Start:
    """Gather between nodes the pieces of the ranks at one place; inside the node, those of all places."""
    at, task = _node_groups(part), part.task
    held = [[task.source_boxes[p] for p in counterparts(task, place)] for place in range(len(at.mates))]
    bundles = [_bundle(part, part.target, part.goal, boxes, f"of.{j}") for j, boxes in enumerate(held)]
    memory = bundles[at.place][0]
    sections = _sections(memory, held[at.place])
    leaving, coming = part.spread(at.peers, [part.source] * len(sections)), part.spread(at.peers, sections)
    bundled = part.spread(at.mates, [memory] * len(bundles)), part.spread(at.mates, [memory for memory, _ in bundles])

    def act() -> Requests:
        part.xp.copyto(sections[at.node], part.source)
        yield part.exchange(leaving, coming)
        yield part.exchange(*bundled)
        for _, copies in bundles:
            for piece, place in copies:
                part.xp.copyto(piece, place)

    return act


def _bundle(part: Part, array: HostArray, frame: Box, pieces: Sequence[Box], name: str) -> tuple[HostArray, Copies]:
    """Memory for pieces one after another, and (piece of the array, its place in that memory) pairs."""
    views = [piece_of(array, piece, frame) for piece in pieces]
    memory = part.scratch.get(name, (sum(view.size for view in views),), array.dtype)
    return memory, list(zip(views, _sections(memory, pieces), strict=True))


def _sections(memory: HostArray, pieces: Sequence[Box]) -> list[HostArray]:
    """Views of the pieces that lie in memory one after another."""
    cuts = itertools.pairwise(itertools.accumulate(map(box_size, pieces), initial=0))
    return [memory[slice(*cut)].reshape(box_shape(piece)) for cut, piece in zip(cuts, pieces, strict=True)]


TWO_LEVELS: Mapping[ActKind, Callable[[Part], Start]] = {
    ActKind.ALL_REDUCE: _two_level_all_reduce,
    ActKind.REDUCE_SCATTER: _two_level_reduce_scatter,
    ActKind.ALL_GATHER: _two_level_all_gather,
}
