"""Shares: what the busiest rank sends in steps of boxing, of all steps at once.

Along the axes of a step, ranks hold pieces of one block: that of the group which holds most. Splits are balanced, the
first parts longer, so the longest and the shortest pieces follow from the lengths of the dims by divisions rounded up
and down, as arrays [sets of axes, layouts, dims]. Where p ranks hold n elements at most before a step and m after it,
the busiest sends

    all-gather       n (p - 1)
    reduce-scatter   n less the smallest m
    all-reduce       n + ceil(n / p) (p - 2), as each cuts what it holds into p parts
    rotation         n
    all-to-all       along one axis: n less what of it is in its own piece afterwards

An all-to-all along several axes, of a rotated split or of an owner is counted on the ranks of one group; where pieces
are even, once for all tensors: what is sent is the same fraction of them whatever their size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.comm.boxing import BoxingStep, Ints, LayoutSteps, StepTable
from strategy.comm.exchanged import LACKING, exchanged
from strategy.comm.hierarchical import nodes_of, span_of
from strategy.comm.sent_bytes import most_sent_nbytes
from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, Owner, Split, largest_position, local_boxes
from strategy.sbp.tensor import DType, Shape, TensorSpec

_LARGEST = 1 << 56
"""Elements of a tensor of which all sums of bytes fit 64 bits; larger ones are counted in Python's whole numbers."""


@lru_cache(maxsize=1 << 12)
def one_step(source: NdSbp, step: BoxingStep, mesh: Shape) -> StepTable:
    """A step by itself."""
    return StepTable(LayoutSteps((source, step.target), (step,), np.zeros(1, np.int64), np.ones(1, np.int64)), mesh)


@dataclass(frozen=True, slots=True)
class _Regroup:
    """A step as its group sees it: on a mesh of its own, of the dims alone that are cut."""

    source: NdSbp
    target: NdSbp
    mesh: Shape
    dims: tuple[int, ...]


_Sides = tuple[NdSbp, NdSbp, tuple[int, ...]]
"""What the group of a step holds before and after, of the dims alone that are cut, and these dims."""


@dataclass(frozen=True, slots=True, eq=False)
class _Regroups:
    """Steps along the same axes that are counted, on a mesh of any size.

    Attributes:
        axes: that change.
        among: what the steps are of.
        steps: which they are.
        alike: of each step, which of the sides of groups its own are, each of which is looked at once.
        first: of each of these sides, a step that has them.
        is_cut: [sides, dims], which dims are cut.
        owned: [sides], whether an axis has an owner.
        dims, shifts: [sides, 2, axes], which dim each axis splits before and after, less than 0 where it splits none,
            and how far that is rotated.
    """

    axes: tuple[int, ...]
    among: LayoutSteps
    steps: Ints
    alike: Ints
    first: Ints
    is_cut: npt.NDArray[np.bool_]
    owned: npt.NDArray[np.bool_]
    dims: Ints
    shifts: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Formulas:
    """Steps on tensors of so many dims: which axis cuts which dim, and by which formula a step is counted."""

    is_cut: npt.NDArray[np.bool_]
    """[axes, layouts, dims]: whether it is, into as many parts as the axis has ranks."""
    shifts: Ints
    """[axes, layouts, dims]: how far they are rotated."""
    sets: tuple[tuple[int, ...], ...]
    """The sets of axes along which there are steps."""
    within: npt.NDArray[np.bool_]
    """[sets of axes, axes, 1, 1]: whether the axis is one of the set."""
    empty: npt.NDArray[np.bool_]
    """[sets of axes, layouts]: whether some ranks along the axes have nothing, beside an owner."""
    along: Ints
    """Step -> its set of axes."""
    of_kind: Mapping[ActKind, Ints]
    """Kind -> its steps that have a formula."""
    joined: Ints
    cut: Ints
    """The dims that all-to-alls with a formula join and cut."""
    regroups: tuple[_Regroups, ...]
    """Steps that are counted, by their axes."""


@lru_cache(maxsize=1 << 12)
def _formulas(steps: LayoutSteps, dims: int) -> _Formulas:
    layouts = steps.layouts
    axes = range(len(layouts[0]))
    is_cut = np.zeros((len(axes), len(layouts), dims), bool)
    shifts = np.zeros(is_cut.shape, np.int64)
    for i, layout in enumerate(layouts):
        for axis, sbp in enumerate(layout):
            if isinstance(sbp, Split):
                is_cut[axis, i, sbp.dim], shifts[axis, i, sbp.dim] = True, sbp.shift
    sets = {axes: k for k, axes in enumerate(dict.fromkeys(step.axes for step in steps.steps))}
    within = np.array([[axis in among for axis in axes] for among in sets], bool)
    empty = np.array([[any(isinstance(nd[axis], Owner) for axis in among) for nd in layouts] for among in sets], bool)
    of_kind: dict[ActKind, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    counted: dict[tuple[int, ...], list[int]] = {}
    for i, (step, before) in enumerate(zip(steps.steps, steps.sources.tolist(), strict=True)):
        source = layouts[before]
        if step.kind is ActKind.ALL_TO_ALL:
            pair = _joined_and_cut(source, step)
            if pair is None:
                counted.setdefault(step.axes, []).append(i)
                continue
            pairs.append(pair)
        of_kind.setdefault(step.kind, []).append(i)
    joined, cut = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    return _Formulas(
        is_cut,
        shifts,
        tuple(sets),
        within.reshape(len(sets), len(axes), 1, 1),
        empty.reshape(len(sets), len(layouts)),
        np.array([sets[step.axes] for step in steps.steps], np.int64),
        {kind: np.array(found, np.int64) for kind, found in of_kind.items()},
        joined,
        cut,
        tuple(_regroups(steps, along, np.array(found), is_cut, shifts) for along, found in counted.items()),
    )


def _regroups(
    steps: LayoutSteps, axes: tuple[int, ...], counted: Ints, cuts: npt.NDArray[np.bool_], rotated: Ints
) -> _Regroups:
    """Of steps along the same axes.

    Args:
        steps: of a table.
        axes: that these change.
        counted: which they are.
        cuts: [axes, layouts, dims], whether an axis cuts a dim.
        rotated: [axes, layouts, dims], how far that is rotated.
    """
    numbers: dict[NdSbp, int] = {}
    along = [tuple([layout[axis] for axis in axes]) for layout in steps.layouts]
    number = np.array([numbers.setdefault(sbps, len(numbers)) for sbps in along], np.int64)
    pairs = number[steps.sources[counted]] * len(numbers) + number[steps.targets[counted]]
    _, place, alike = np.unique(pairs, return_index=True, return_inverse=True)
    first = counted[place]
    sides = np.stack([steps.sources[first], steps.targets[first]], 1)
    cut, shift = (np.moveaxis(each[list(axes)][:, sides], 0, 2) for each in (cuts, rotated))  # [sides, 2, axes, dims]
    is_cut = np.logical_or.reduce(cut, (1, 2))
    is_cut[~is_cut.any(1), 0] = True  # an owner's tensor has dims, be they not split
    is_owned = np.array([any(isinstance(sbp, Owner) for sbp in sbps) for sbps in along], bool)
    owned = np.logical_or.reduce(is_owned[sides], 1)
    return _Regroups(
        axes, steps, counted, alike, first, is_cut, owned, np.where(cut.any(3), cut.argmax(3), -1), shift.sum(3)
    )


def _joined_and_cut(source: NdSbp, step: BoxingStep) -> tuple[int, int] | None:
    """The dims that an all-to-all joins and cuts, along one axis, in order; None of another."""
    before, after = source[step.axes[0]], step.target[step.axes[0]]
    if len(step.axes) > 1 or not isinstance(before, Split) or not isinstance(after, Split):
        return None
    return None if before.shift or after.shift else (before.dim, after.dim)


@lru_cache(maxsize=1 << 16)
def _sides(source: NdSbp, step: BoxingStep) -> _Sides:
    sides = [tuple(layout[axis] for axis in step.axes) for layout in (source, step.target)]
    split = {sbp.dim for side in sides for sbp in side if isinstance(sbp, Split)}
    dims = tuple(sorted(split)) or (0,)  # an owner's tensor has dims, be they not split
    before, after = (
        tuple(Split(dims.index(sbp.dim), sbp.shift) if isinstance(sbp, Split) else sbp for sbp in side)
        for side in sides
    )
    return before, after, dims


@lru_cache(maxsize=1 << 14)
def _regroup(source: NdSbp, step: BoxingStep, mesh: Shape) -> _Regroup:
    before, after, dims = _sides(source, step)
    return _Regroup(before, after, tuple(mesh[axis] for axis in step.axes), dims)


@lru_cache(maxsize=1 << 14)
def _regrouped(lengths: Shape, regroup: _Regroup) -> int:
    """Elements that the busiest rank sends in an all-to-all of a group that holds a block of such lengths."""
    before, after = (local_boxes(lengths, side, regroup.mesh) for side in (regroup.source, regroup.target))
    spec = TensorSpec(lengths, DType.INT32)
    task = BoxingTask(tuple(range(len(before))), before, after)
    return most_sent_nbytes(ActKind.ALL_TO_ALL, task, spec) // spec.dtype.nbytes


@lru_cache(maxsize=1 << 12)
def _evenly(regroups: _Regroups, mesh: Shape) -> tuple[Ints, Ints]:
    """(sides,), twice: which part of its block the busiest rank sends, as a fraction, where ranks have as much each.

    It is seen on blocks of one element for each part of a dim, before and after.
    """
    count, dims = regroups.is_cut.shape
    parts = np.ones((2, count, dims), np.int64)
    for side, axis in np.ndindex(2, len(mesh)):
        split = regroups.dims[:, side, axis]
        rows = np.flatnonzero(split >= 0)
        parts[side, rows, split[rows]] *= mesh[axis]
    blocks = np.lcm(*parts)
    sent, sizes = _all_exchanged(regroups, np.arange(count), blocks, mesh), blocks.prod(1)
    common = np.gcd(sent, sizes)
    return sent // common, sizes // common


def _all_exchanged(regroups: _Regroups, alike: Ints, blocks: Ints, mesh: Shape) -> Ints:
    """(rows,): elements that the busiest rank of a group sends of a block, [rows, dims], of the given sides."""
    sent = np.full(len(blocks), LACKING, blocks.dtype)
    if blocks.dtype == np.int64:
        sent = exchanged(blocks, mesh, regroups.dims[alike], regroups.shifts[alike])
    for row in np.flatnonzero((sent == LACKING) | regroups.owned[alike]).tolist():
        among, step = regroups.among, int(regroups.first[alike[row]])
        before, after, dims = _sides(among.layouts[among.sources[step]], among.steps[step])
        cut: Shape = tuple(blocks[row][list(dims)].tolist())
        count = math.prod(blocks[row].tolist()) // math.prod(cut)
        sent[row] = count * _regrouped(cut, _Regroup(before, after, mesh, dims))
    return sent


class StepSizes:
    """What ranks hold and send in some steps on one tensor, in elements, in the group that holds most."""

    def __init__(self, steps: StepTable, spec: TensorSpec) -> None:
        self._steps = steps
        self._whole = _whole(spec.shape)
        self._formulas = found = _formulas(steps.among, len(spec.shape))
        self._parts = np.where(found.is_cut, np.array(steps.mesh, np.int64)[:, None, None], 1)
        self._ranks = np.array([math.prod(steps.mesh[axis] for axis in axes) for axes in found.sets], np.int64)
        block = longest = shortest = self._whole
        for parts, shifts, within in zip(self._parts, found.shifts, found.within.swapaxes(0, 1), strict=True):
            block = np.where(within, block, _part(block, parts, shifts))
            longest = np.where(within, -(-longest // parts), _part(longest, parts, shifts))
            shortest = np.where(within, shortest // parts, _part(shortest, parts, shifts))
        self._block, self._longest, self._shortest = block, longest, shortest
        self._largest = longest.prod(axis=2)
        self._smallest = np.where(found.empty, 0, shortest.prod(axis=2))

    def largest_pieces(self) -> Ints:
        """Elements of the largest piece of all ranks under every layout."""
        lengths = self._whole
        for parts in self._parts:
            lengths = -(-lengths // parts)
        found: Ints = lengths.prod(axis=1)
        return found

    def sent(self) -> Ints:
        """Elements that the busiest rank sends in every step; none of slices."""
        found, steps = self._formulas, self._steps
        sent = np.zeros(len(steps.steps), self._largest.dtype)
        for kind, chosen in found.of_kind.items():
            along = found.along[chosen]
            ranks = self._ranks[along]
            own = self._largest[along, steps.sources[chosen]]
            if kind is ActKind.ALL_GATHER:
                sent[chosen] = own * (ranks - 1)
            elif kind is ActKind.REDUCE_SCATTER:
                sent[chosen] = own - self._smallest[along, steps.targets[chosen]]
            elif kind is ActKind.ALL_REDUCE:
                sent[chosen] = own + -(-own // ranks) * (ranks - 2)
            elif kind is ActKind.ROTATE:
                sent[chosen] = own
            elif kind is ActKind.ALL_TO_ALL:
                sent[chosen] = self._exchanged(chosen)
        for regroups in found.regroups:
            self._count(regroups, sent)
        return sent

    def _exchanged(self, chosen: Ints) -> Ints:
        """Of all-to-alls along one axis: of its part of the dim that is joined, a rank keeps its part of another.

        Parts are one longer up to some rank, so the most is sent by the first rank, the last one, or the last that has
        a longer part of the dim that is joined.
        """
        found, steps = self._formulas, self._steps
        along, sources = found.along[chosen], steps.sources[chosen]
        ranks = self._ranks[along]
        joined, cut = self._block[along, sources, found.joined], self._block[along, sources, found.cut]
        rest = self._largest[along, sources] // (self._longest[along, sources, found.joined] * cut)
        most = np.zeros(len(chosen), self._largest.dtype)
        for rank in (np.zeros_like(ranks), np.maximum(joined % ranks - 1, 0), ranks - 1):
            held, kept = _part(joined, ranks, rank), _part(cut, ranks, rank)
            most = np.maximum(most, held * (cut - kept))
        sent: Ints = rest * most
        return sent

    def _count(self, regroups: _Regroups, sent: Ints) -> None:
        """Fill in steps that have no formula."""
        steps, at, alike = self._steps, regroups.steps, regroups.alike
        mesh = tuple(steps.mesh[axis] for axis in regroups.axes)
        sent_of, of = _evenly(regroups, mesh)
        along, sides = self._formulas.along[at], (steps.sources[at], steps.targets[at])
        is_even = [(self._longest[along, side] == self._shortest[along, side]).all(1) for side in sides]
        block = self._block[along, sides[0]]
        lengths = np.where(regroups.is_cut[alike], block, 1).prod(1)
        # Divided first, no product is larger than a block.
        sent[at] = block.prod(1) // lengths * (lengths // of[alike] * sent_of[alike])
        rows = np.flatnonzero(~(is_even[0] & is_even[1]))
        sent[at[rows]] = _all_exchanged(regroups, alike[rows], block[rows], mesh)

    def sent_in_parts(self, kind: ActKind, chosen: Ints, levels: NodeGroups) -> list[Ints]:
        """Elements that the busiest rank sends in each of the `PARTS` of collectives of one kind on two levels.

        Of an all-reduce the busiest has the longest parts; else all ranks send alike where their pieces are alike.

        Args:
            kind: of the collectives.
            chosen: which steps they are, all along the same axes.
            levels: how their groups lie on nodes.
        """
        found, steps = self._formulas, self._steps
        nodes, per_node = levels.counts
        along = found.along[chosen]
        own = self._largest[along, steps.sources[chosen]]
        if kind is ActKind.ALL_REDUCE:
            piece = -(-own // per_node)
            return [own - own // per_node, piece + -(-piece // nodes) * (nodes - 2), piece * (per_node - 1)]
        sides = (steps.targets if kind is ActKind.REDUCE_SCATTER else steps.sources)[chosen]
        one = self._largest[along, sides]
        shares = np.array([one, one * nodes, one * nodes, one * nodes - one])
        for row in np.flatnonzero(one != self._smallest[along, sides]).tolist():
            shares[:, row] = self._uneven_shares(int(chosen[row]), int(sides[row]), levels)
        most, most_at_place, least_at_place, most_beside = shares
        if kind is ActKind.REDUCE_SCATTER:
            return [own - least_at_place, most_beside]
        return [most * (nodes - 1), most_at_place * (per_node - 1)]

    def _uneven_shares(self, i: int, side: int, levels: NodeGroups) -> list[int]:
        """`_shares` of a step's layout."""
        step, layout = self._steps.steps[i], self._steps.layouts[side]
        regroup = _regroup(layout, BoxingStep(step.kind, step.axes, layout), self._steps.mesh)
        block = self._block[self._formulas.along[i], side]
        lengths = tuple(block[list(regroup.dims)].tolist())
        count = math.prod(block.tolist()) // math.prod(lengths)
        return [count * share for share in _shares(lengths, regroup, levels)]


def _part(lengths: Ints, parts: Ints | int, place: Ints) -> Ints:
    """Lengths of the parts at a place where dims are cut into so many, the first ones longer."""
    return lengths // parts + (place < lengths % parts)


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """The positions in a group of its ranks by node, where it may take two levels."""

    by_node: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, int]:
        """Nodes, and ranks of each."""
        return len(self.by_node), len(self.by_node[0])

    def hops(self, level: str) -> int:
        """The other ranks with which a rank works on a level."""
        nodes, per_node = self.counts
        return (per_node if level == "intra" else nodes) - 1


def busiest_position(source: NdSbp, step: BoxingStep, mesh: Shape) -> int:
    """Where a rank stands of the group that holds most: the first, or that of the owners along the other axes."""
    others = tuple(B if axis in step.axes else sbp for axis, sbp in enumerate(source))
    return largest_position(others, mesh)


@lru_cache(maxsize=1024)
def node_groups(cluster: Cluster, placement: Placement, axes: tuple[int, ...], position: int) -> NodeGroups | None:
    """How the group of the rank at a position lies on nodes, if all groups may take two levels in the same way."""
    if not span_of(cluster, placement, axes).two_level:
        return None
    group = placement.group(placement.devices[position], *axes)
    places = {rank: place for place, rank in enumerate(group)}
    return NodeGroups(tuple(tuple(places[rank] for rank in node) for node in nodes_of(cluster, group)))


@lru_cache(maxsize=1 << 12)
def _shares(lengths: Shape, regroup: _Regroup, levels: NodeGroups) -> tuple[int, int, int, int]:
    """What ranks hold of a block: most, most and least at one place of all nodes, most at a place beside one rank."""
    _, lengths_held = pieces_by_rank(lengths, regroup.source, regroup.mesh)
    sizes = lengths_held.prod(axis=1)
    held = sizes[np.array(levels.by_node)]
    at_place = held.sum(axis=0)
    return int(held.max()), int(at_place.max()), int(at_place.min()), int((at_place - held).max())


def _whole(shape: Shape) -> Ints:
    return np.array(shape, np.int64 if math.prod(shape) <= _LARGEST else object)


def pieces_by_rank(shape: Shape, layout: NdSbp, mesh: Shape) -> tuple[Ints, Ints]:
    """[ranks, dims]: where the pieces of all ranks begin, and how long they are, as `local_boxes` has them."""
    lengths = _whole(shape)[None]
    begins = np.zeros_like(lengths)
    for sbp, parts in zip(layout, mesh, strict=True):
        place = np.tile(np.arange(parts), len(lengths))
        begins, lengths = np.repeat(begins, parts, axis=0), np.repeat(lengths, parts, axis=0)
        if isinstance(sbp, Split):
            place = (place + sbp.shift) % parts
            cut = lengths[:, sbp.dim]
            begins[:, sbp.dim] += place * (cut // parts) + np.minimum(place, cut % parts)
            lengths[:, sbp.dim] = _part(cut, parts, place)
        elif isinstance(sbp, Owner):
            begins[place != sbp.coordinate] = lengths[place != sbp.coordinate] = 0
    return begins, lengths


@lru_cache(maxsize=1 << 14)
def most_sent(spec: TensorSpec, source: NdSbp, step: BoxingStep, mesh: Shape) -> int:
    """Bytes that the busiest rank sends in a step, in the group that holds most."""
    return spec.sent_nbytes(int(StepSizes(one_step(source, step, mesh), spec).sent()[0]))


@lru_cache(maxsize=1 << 12)
def most_sent_in_parts(
    spec: TensorSpec, source: NdSbp, step: BoxingStep, mesh: Shape, levels: NodeGroups
) -> tuple[int, ...]:
    """Bytes that the busiest rank sends in each part of a collective on two levels."""
    sizes = StepSizes(one_step(source, step, mesh), spec)
    parts = sizes.sent_in_parts(step.kind, np.zeros(1, np.int64), levels)
    return tuple(int(part[0]) * spec.dtype.nbytes for part in parts)
