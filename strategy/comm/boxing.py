r"""Boxing: how a tensor passes from one layout to another.

On one placement, a conversion is a chain of steps. A step changes the layout along one mesh axis

    from \\ to   S(j)             B            P
    S(i)        all-to-all       all-gather   slice: own piece in a tensor of neutral elements
    B           slice            -            slice: the first rank keeps it, the others hold neutral elements
    P           reduce-scatter   all-reduce   -

or along several, seen as one larger axis: all their terms reduced at once, or any layout without terms along them made
into any other by an all-to-all of what ranks lack. The neutral element of sums is 0, of P(max) the least value of the
dtype, of P(min) the greatest. A split becomes another rotation of itself by a rotation: every rank sends its piece to
one rank and gets one.

Splits nest (see `sbp`), so where later axes split a dim that a step splits or joins, they are part of that step. Terms
nest too: an axis is reduced only when the later ones hold no terms of another reduction.

Between any two placements, a tensor without partial terms moves by messages, each the overlap of what one rank holds
with what another needs; chains convert before and after that transfer (`convert`).

Bytes sent, over all p ranks of a group that holds a tensor of T bytes: all-gather T(p-1), reduce-scatter T(p-1),
all-reduce 2T(p-1), all-to-all T(p-1)/p along one axis, slice 0 (OneFlow, Yuan et al. 2021, table 2); rotation T.

Of a ragged tensor the same steps move the rows that there are, each with its place (`strategy.sbp.ragged`); the bytes
stated are those expected.

To boxing an owner, O(k), is the most uneven split, and the steps are those of S. Bytes, with the whole tensor at one
rank: P -> O is a reduction to it, T(p-1); O -> B a broadcast from it, T(p-1); S -> O and O -> S gather and scatter,
T(p-1)/p; O(k) -> O(l) a message, T; B -> O and O -> P are slices.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from strategy.base.errors import SbpError
from strategy.comm.hierarchical import box_size, part_sizes
from strategy.program.program import ActKind, BoxingTask, Message, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import (
    B,
    Broadcast,
    NdSbp,
    Owner,
    P,
    Partial,
    Reduce,
    Sbp,
    Split,
    format_nd,
    has_partial,
    is_legal_layout,
    local_boxes,
    may_be_partial,
    reductions,
)
from strategy.sbp.tensor import Box, Shape, TensorSpec, intersect, is_empty

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LARGEST_REGROUP = 64
"""Most ranks between which an all-to-all along several axes is looked for: pricing one takes their number squared."""


@dataclass(frozen=True, slots=True)
class BoxingStep:
    """One step of a conversion: along `axes` (a transfer has none), after which the layout is `target`."""

    kind: ActKind
    axes: tuple[int, ...]
    target: NdSbp


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Single steps among layouts on a mesh, as arrays: step i leads from layout `sources[i]` to layout `targets[i]`.

    Whatever tensor they are of: those of all tensors with the same legal layouts are one and the same.
    """

    layouts: tuple[NdSbp, ...]
    mesh: Shape
    steps: tuple[BoxingStep, ...]
    sources: Ints
    targets: Ints


Price = Callable[[TensorSpec, StepTable], Floats]
"""(spec, steps) -> seconds of every one of the steps on the placement that the price belongs to."""

_ALONG_ONE: dict[tuple[type[Sbp], type[Sbp]], ActKind] = {
    (Split, Split): ActKind.ALL_TO_ALL,
    (Split, Broadcast): ActKind.ALL_GATHER,
    (Split, Partial): ActKind.SLICE,
    (Broadcast, Split): ActKind.SLICE,
    (Broadcast, Partial): ActKind.SLICE,
    (Partial, Split): ActKind.REDUCE_SCATTER,
    (Partial, Broadcast): ActKind.ALL_REDUCE,
}
_ALONG_SEVERAL: dict[tuple[type[Sbp], type[Sbp]], ActKind] = {
    (Split, Broadcast): ActKind.ALL_GATHER,
    (Partial, Split): ActKind.REDUCE_SCATTER,
    (Partial, Broadcast): ActKind.ALL_REDUCE,
}


_FORMS: tuple[type[Sbp], ...] = (Split, Broadcast, Partial)


def _form(sbp: Sbp) -> type[Sbp]:
    """What a step depends on: an owner holds a piece, the others empty ones, as of a split."""
    return Split if isinstance(sbp, Owner) else type(sbp)


@lru_cache(maxsize=1 << 16)
def step_between(source: NdSbp, target: NdSbp) -> BoxingStep | None:
    """The one step that turns `source` into `target`; None where no single one does."""
    changed = [axis for axis, (a, b) in enumerate(zip(source, target, strict=True)) if a != b]
    if not changed:
        return None
    axes = _with_nested(changed, source, target)
    pairs = {(_form(source[axis]), _form(target[axis])) for axis in axes}
    if any(Partial in pair for pair in pairs):
        if axes != changed or len(pairs) > 1 or not _may_reduce(changed, source):
            return None
        kinds = _ALONG_ONE if len(axes) == 1 else _ALONG_SEVERAL
        kind = kinds.get(next(iter(pairs)))
        return None if kind is None else BoxingStep(kind, tuple(axes), target)
    if len(axes) == 1:
        return BoxingStep(_without_terms(source[axes[0]], target[axes[0]]), tuple(axes), target)
    if axes == changed and pairs == {(Broadcast, Split)}:
        return None
    kind = _ALONG_SEVERAL[Split, Broadcast] if pairs == {(Split, Broadcast)} else ActKind.ALL_TO_ALL
    return BoxingStep(kind, tuple(axes), target)


def _without_terms(source: Sbp, target: Sbp) -> ActKind:
    """What changes one axis along which there are no terms."""
    if isinstance(source, Split) and isinstance(target, Split) and source.dim == target.dim:
        return ActKind.ROTATE
    return _ALONG_ONE[_form(source), _form(target)]


def _with_nested(changed: Sequence[int], source: NdSbp, target: NdSbp) -> list[int]:
    """The axes that change, and later ones whose pieces lie elsewhere then, as they split the same dims."""
    dims: set[int] = set()
    axes = []
    for axis, (before, after) in enumerate(zip(source, target, strict=True)):
        split = {sbp.dim for sbp in (before, after) if isinstance(sbp, Split)}
        if axis in changed or split & dims:
            axes.append(axis)
            dims |= split
    return axes


def _may_reduce(changed: Sequence[int], source: NdSbp) -> bool:
    """Whether terms along `changed` combine in one way, and none of another way are nested in them."""
    nested = reductions(source[changed[0] :])
    return len(nested) <= 1 or not any(isinstance(source[axis], Partial) for axis in changed)


def layouts_of(
    spec: TensorSpec,
    mesh: Shape,
    *,
    partial: bool = True,
    reduces: Iterable[Reduce] = (Reduce.SUM,),
    special: Sequence[Sequence[Sbp]] = (),
) -> list[NdSbp]:
    """Every legal layout of a tensor on a mesh; an axis of one rank is always B.

    Terms of `reduces` are included, and along each axis what is `special` and named for it: rotated splits, owners.
    """
    options: list[Sbp] = [B, *(Split(d) for d in range(len(spec.shape)))]
    if partial:
        options += [Partial(reduce) for reduce in Reduce if reduce in reduces and may_be_partial(spec, reduce)]
    more = special or [()] * len(mesh)
    per_axis = [[*options, *splits] if parts > 1 else [B] for parts, splits in zip(mesh, more, strict=True)]
    return [nd for nd in itertools.product(*per_axis) if is_legal_layout(spec.shape, nd, mesh)]


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
        return float(self.all_seconds(spec, (source,), (target,))[0, 0])

    def all_seconds(self, spec: TensorSpec, sources: Sequence[NdSbp], targets: Sequence[NdSbp]) -> Floats:
        """(sources, targets): `seconds` between several layouts."""
        tables = self._tables(spec)
        usual = tables[_USUAL]
        here, there = ([_known(layout) for layout in side] for side in (sources, targets))
        rows, columns = ([usual.index.get(layout, -1) for layout in side] for side in (here, there))
        found = usual.seconds[np.ix_(rows, columns)]
        for i, row in enumerate(rows):
            for j in range(len(columns)) if row < 0 else [j for j, column in enumerate(columns) if column < 0]:
                table = self._table_with(spec, tables, _both(here[i].beyond, there[j].beyond))
                found[i, j] = table.seconds[self._index(spec, table, here[i]), self._index(spec, table, there[j])]
        return found

    def reaches(self, spec: TensorSpec, sources: Sequence[NdSbp], targets: Sequence[NdSbp]) -> Bools:
        """(sources, targets): whether there is a chain; what it costs is not worked out for that."""
        if spec not in self.tables:
            if spec not in self.usual:
                self.usual[spec] = steps_among(tuple(layouts_of(spec, self.placement.mesh)), self.placement.mesh)
            index, _ = _places(self.usual[spec])
            rows, columns = ([index.get(_known(layout), -1) for layout in side] for side in (sources, targets))
            if min(rows) >= 0 and min(columns) >= 0:
                return _reach(self.usual[spec])[np.ix_(rows, columns)]
        return np.isfinite(self.all_seconds(spec, sources, targets))

    def chain(self, spec: TensorSpec, source: NdSbp, target: NdSbp) -> tuple[BoxingStep, ...]:
        """The cheapest chain of steps.

        Raises:
            SbpError: no chain leads there, or a side is no legal layout.
        """
        tables, ends = self._tables(spec), (_known(source), _known(target))
        usual = all(layout in tables[_USUAL].index for layout in ends)
        table = self._table_with(spec, tables, _USUAL if usual else _both(ends[0].beyond, ends[1].beyond))
        here, there = (self._index(spec, table, layout) for layout in ends)
        if table.seconds[here, there] == math.inf:
            raise SbpError("no boxing leads there", got=f"{format_nd(source)} to {format_nd(target)} of {spec.shape}")
        steps = []
        while here != there:
            following = int(table.following[here, there])
            steps.append(table.steps[here, following])
            here = following
        return tuple(steps)

    def _index(self, spec: TensorSpec, table: _Table, layout: _Layout) -> int:
        """Where a layout stands in a table."""
        if layout not in table.index:
            got = f"{format_nd(layout.nd_sbp)} of {spec.dtype} {spec.shape} on mesh {self.placement.mesh}"
            raise SbpError("not a legal layout", got=got)
        return table.index[layout]

    def _tables(self, spec: TensorSpec) -> dict[_Beyond, _Table]:
        found = self.tables.get(spec)
        if found is None:
            found = self.tables[spec] = {}
            self._table_with(spec, found, _USUAL)
        return found

    def _table_with(self, spec: TensorSpec, tables: dict[_Beyond, _Table], beyond: _Beyond) -> _Table:
        found = tables.get(beyond)
        if found is None:
            reduces, special = beyond
            layouts = layouts_of(spec, self.placement.mesh, reduces=reduces, special=special)
            found = tables[beyond] = _cheapest(spec, steps_among(tuple(layouts), self.placement.mesh), self.price)
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
def steps_among(layouts: tuple[NdSbp, ...], mesh: Shape) -> StepTable:
    """Every single step from one layout to another that a table prices."""
    named = _numbered(layouts)
    if named != layouts:
        alike, own = steps_among(named, mesh), dict(zip(named, layouts, strict=True))
        here = (own[step.target] for step in alike.steps)
        steps = tuple(
            step if step.target == target else BoxingStep(step.kind, step.axes, target)
            for step, target in zip(alike.steps, here, strict=True)
        )
        return StepTable(layouts, mesh, steps, alike.sources, alike.targets)
    found: list[tuple[int, int, BoxingStep]] = []
    for i, j in np.argwhere(_may_step(layouts)).tolist():
        step = step_between(layouts[i], layouts[j])
        if step is not None and (len(step.axes) == 1 or _worth_pricing(step, mesh)):
            found.append((i, j, step))
    sources, targets = (np.array([one[side] for one in found], np.int64) for side in (0, 1))
    return StepTable(layouts, mesh, tuple(step for *_, step in found), sources, targets)


def _numbered(layouts: tuple[NdSbp, ...]) -> tuple[NdSbp, ...]:
    """The layouts, rotated by 1, 2, ... in place of the shifts along each axis: what steps there are is the same."""
    numbers: dict[tuple[int, int], int] = {}

    def numbered(axis: int, sbp: Sbp) -> Sbp:
        if not isinstance(sbp, Split) or not sbp.shift:
            return sbp
        number = numbers.get((axis, sbp.shift))
        if number is None:
            number = 1 + sum(one == axis for one, _ in numbers)
            numbers[axis, sbp.shift] = number
        return sbp if number == sbp.shift else Split(sbp.dim, number)

    return tuple(tuple(numbered(axis, sbp) for axis, sbp in enumerate(layout)) for layout in layouts)


def _may_step(layouts: Sequence[NdSbp]) -> npt.NDArray[np.bool_]:
    """(layouts, layouts): where there may be a single step; most pairs that change terms on several axes have none."""
    numbers: dict[Sbp, int] = {}
    codes = np.array([[numbers.setdefault(sbp, len(numbers)) for sbp in layout] for layout in layouts])
    is_partial = np.array([isinstance(sbp, Partial) for sbp in numbers])[codes]
    forms = np.array([_FORMS.index(_form(sbp)) for sbp in numbers])[codes]
    changed = codes[:, None] != codes[None]
    ends = len(_FORMS) * forms[:, None] + forms[None]
    with_terms = changed & (is_partial[:, None] | is_partial[None])
    unlike = np.zeros(changed.shape[:2], bool)
    for one, other in itertools.combinations(range(codes.shape[1]), 2):
        unlike |= changed[..., one] & changed[..., other] & (ends[..., one] != ends[..., other])
    found: npt.NDArray[np.bool_] = changed.any(2) & ~(with_terms.any(2) & unlike)
    return found


def _worth_pricing(step: BoxingStep, mesh: Shape) -> bool:
    return step.kind is not ActKind.ALL_TO_ALL or math.prod(mesh[axis] for axis in step.axes) <= LARGEST_REGROUP


@lru_cache(maxsize=256)
def _places(steps: StepTable) -> tuple[Mapping[_Layout, int], Mapping[tuple[int, int], BoxingStep]]:
    """Where every layout stands in a table, and every step."""
    pairs = zip(steps.sources.tolist(), steps.targets.tolist(), strict=True)
    index = {_known(layout): i for i, layout in enumerate(steps.layouts)}
    return index, dict(zip(pairs, steps.steps, strict=True))


@lru_cache(maxsize=256)
def _reach(steps: StepTable) -> Bools:
    """(layouts, layouts): whether steps lead from one to the other (Warshall 1962)."""
    found = np.eye(len(steps.layouts), dtype=bool)
    found[steps.sources, steps.targets] = True
    for via in range(len(found)):
        found |= found[:, via, None] & found[via]
    return found


def _cheapest(spec: TensorSpec, steps: StepTable, price: Price) -> _Table:
    count = len(steps.layouts)
    seconds = np.full((count, count), np.inf)
    np.fill_diagonal(seconds, 0.0)
    following = np.tile(np.arange(count, dtype=np.int16), (count, 1))
    seconds[steps.sources, steps.targets] = price(spec, steps)
    for via in range(count):
        through = seconds[:, via, None] + seconds[via]
        shorter = through < seconds
        np.copyto(seconds, through, where=shorter)
        np.copyto(following, following[:, via, None], where=shorter)
    index, between = _places(steps)
    return _Table(index, between, seconds, following)


def boxing_task(spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement, rank: int) -> BoxingTask:
    """One rank's part of a step: its group, and who holds what before and after."""
    positions = placement.positions(rank, *step.axes)
    before = local_boxes(spec.shape, source, placement.mesh)
    after = local_boxes(spec.shape, step.target, placement.mesh)
    terms = next((sbp for a in step.axes for sbp in (source[a], step.target[a]) if isinstance(sbp, Partial)), P)
    return BoxingTask(
        tuple(placement.devices[position] for position in positions),
        tuple(before[position] for position in positions),
        tuple(after[position] for position in positions),
        terms.reduce,
    )


def dealer(holders: Sequence[int], receiver: int, position: int) -> int:
    """Who of the holders of equal pieces gives to a receiver: itself if it is one, else they take turns."""
    return receiver if receiver in holders else _in_turn(holders, position)


def _in_turn(holders: Sequence[int], position: int) -> int:
    return holders[position % len(holders)]


def outgoing(task: BoxingTask, me: int) -> list[Box | None]:
    """What the `me`-th rank of an all-to-all gives to each rank of the group, itself included."""
    own = task.source_boxes[me]
    holders = [index for index, box in enumerate(task.source_boxes) if box == own]
    return [
        intersect(own, wanted) if dealer(holders, receiver, receiver) == me else None
        for receiver, wanted in enumerate(task.target_boxes)
    ]


def incoming(task: BoxingTask, me: int) -> list[Box | None]:
    """What the `me`-th rank of an all-to-all gets from each rank of the group, itself included."""
    found: list[Box | None] = [None] * len(task.group)
    for box, holders in replicas(enumerate(task.source_boxes)).items():
        found[dealer(holders, me, me)] = intersect(box, task.target_boxes[me])
    return found


def replicas(held: Iterable[tuple[int, Box]]) -> dict[Box, list[int]]:
    """Distinct pieces, each with who holds it."""
    found: dict[Box, list[int]] = {}
    for holder, box in held:
        found.setdefault(box, []).append(holder)
    return found


def transfer_task(
    spec: TensorSpec, source: NdSbp, source_placement: Placement, target: NdSbp, target_placement: Placement
) -> TransferTask:
    """The messages that move a tensor between any two placements.

    Of several replicas, a receiver takes its own copy if it holds one, else the replica at its own position modulo
    their number, so that every replica sends about alike.

    Raises:
        SbpError: a side is partial.
    """
    if has_partial(source) or has_partial(target):
        raise SbpError("partial tensors do not travel", got=(format_nd(source), format_nd(target)))
    sides = ((source, source_placement), (target, target_placement))
    source_boxes, target_boxes = (
        dict(zip(placement.devices, local_boxes(spec.shape, layout, placement.mesh), strict=True))
        for layout, placement in sides
    )
    found = replicas(source_boxes.items())
    whole, holders = tuple(found), list(found.values())
    messages = []
    common = _common(whole, tuple(target_boxes.values()))
    for position, (receiver, pieces) in enumerate(zip(target_boxes, common, strict=True)):
        own = source_boxes.get(receiver)
        for piece, box in pieces:
            giver = receiver if own == whole[piece] else _in_turn(holders[piece], position)  # as `dealer` has it
            messages.append(Message(giver, receiver, box))
    return TransferTask(tuple(sorted(messages, key=lambda m: (m.source, m.target, m.box))), source_boxes, target_boxes)


@lru_cache(maxsize=256)
def _common(pieces: tuple[Box, ...], wanted: tuple[Box, ...]) -> tuple[tuple[tuple[int, Box], ...], ...]:
    """For each wanted box the pieces that it meets, each with what they share: the same between all alike stages."""
    near = _near(pieces)
    found: dict[Box, tuple[tuple[int, Box], ...]] = {}
    for one in dict.fromkeys(wanted):
        pairs = ((piece, intersect(pieces[piece], one)) for piece in near(one))
        found[one] = tuple((piece, shared) for piece, shared in pairs if shared is not None)
    return tuple(found[one] for one in wanted)


def _near(pieces: Sequence[Box]) -> Callable[[Box], Sequence[int]]:
    """Box -> the pieces that may meet it, in order, told by the dim along which they are cut into most parts."""
    every = range(len(pieces))
    cuts = [sorted(set(intervals)) for intervals in zip(*pieces, strict=True)]
    if not cuts:
        return lambda _: every
    dim = max(range(len(cuts)), key=lambda d: len(cuts[d]))
    begins, ends = zip(*cuts[dim], strict=True)
    if any(end > begin for end, begin in zip(ends, begins[1:], strict=False)):  # they overlap
        return lambda _: every
    members: dict[tuple[int, int], list[int]] = {}
    for piece, box in enumerate(pieces):
        members.setdefault(box[dim], []).append(piece)

    def near(box: Box) -> Sequence[int]:
        begin, end = box[dim]
        met = cuts[dim][bisect_right(ends, begin) : bisect_left(begins, end)]
        return sorted(piece for interval in met for piece in members[interval])

    return near


def meeting_ranks(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    """Ranks that must meet, as the connected components of the message graph: each is one rendezvous."""
    parent: dict[int, int] = {}

    def root(rank: int) -> int:
        while parent.setdefault(rank, rank) != rank:
            rank = parent[rank]
        return rank

    for message in messages:
        parent[max(root(message.source), root(message.target))] = min(root(message.source), root(message.target))
    components: dict[int, list[int]] = {}
    for rank in sorted(parent):
        components.setdefault(root(rank), []).append(rank)
    return [tuple(ranks) for _, ranks in sorted(components.items())]


def sent_nbytes(kind: ActKind, task: BoxingTask | TransferTask, rank: int, spec: TensorSpec) -> int:
    """Bytes that `rank` sends to other ranks in one act; expected ones where the tensor is ragged."""
    return sum(part_nbytes(kind, task, rank, spec))


def most_sent_nbytes(kind: ActKind, task: BoxingTask, spec: TensorSpec) -> int:
    """Bytes that the busiest rank of a group sends to others in one act on one level, as `sent_nbytes` counts them."""
    if kind is ActKind.ALL_TO_ALL:
        held, wanted = Pieces.of(task.source_boxes), Pieces.of(task.target_boxes)
        if not held.lack and not wanted.lack:
            return spec.sent_nbytes(most_exchanged(held, wanted))
    return spec.sent_nbytes(max(_sent_size(kind, task, me) for me in range(len(task.group))))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of a group's ranks as arrays.

    Attributes:
        boxes: [ranks, dims, 2], begin and end.
        holders: [pieces, copies], the ranks that hold each; nothing where some rank lacks a piece.
        lack: whether some rank does.
    """

    boxes: Ints
    holders: Ints
    lack: bool

    @staticmethod
    def of(boxes: Sequence[Box]) -> Pieces:
        """The pieces of ranks in order."""
        lack = any(map(is_empty, boxes))
        return Pieces(np.array(boxes), np.array([] if lack else list(replicas(enumerate(boxes)).values())), lack)


def most_exchanged(held: Pieces, wanted: Pieces) -> int:
    """What `outgoing` sums up to on the busiest rank, for all ranks at once; what is shared is [pieces, ranks]."""
    shared = np.ones((len(held.holders), len(wanted.boxes)), np.int64)
    for of_held, of_wanted in zip(
        held.boxes[held.holders[:, 0]].swapaxes(0, 1), wanted.boxes.swapaxes(0, 1), strict=True
    ):
        (begin, end), (first, last) = of_held.T[..., None], of_wanted.T
        shared *= np.maximum(np.minimum(end, last) - np.maximum(begin, first), 0)
    np.put_along_axis(shared, held.holders, 0, axis=1)
    senders = held.holders[:, np.arange(len(held.boxes)) % held.holders.shape[1]]
    return int(np.bincount(senders.ravel(), weights=shared.ravel()).max())


def part_nbytes(kind: ActKind, task: BoxingTask | TransferTask, rank: int, spec: TensorSpec) -> tuple[int, ...]:
    """Bytes that `rank` sends to other ranks in each part of one act; an act on two levels has several (`levels`)."""
    if isinstance(task, TransferTask):
        return (spec.sent_nbytes(sum(box_size(m.box) for m in task.messages if m.source == rank != m.target)),)
    if task.nodes:
        return tuple(spec.sent_nbytes(size) for size in part_sizes(kind, task)[rank])
    return (spec.sent_nbytes(_sent_size(kind, task, task.group.index(rank))),)


def group_part_nbytes(kind: ActKind, task: BoxingTask, spec: TensorSpec) -> dict[int, tuple[int, ...]]:
    """`part_nbytes` of every rank of a group."""
    if task.nodes:
        sizes = part_sizes(kind, task)
        return {rank: tuple(spec.sent_nbytes(size) for size in sizes[rank]) for rank in task.group}
    return {rank: (spec.sent_nbytes(_sent_size(kind, task, me)),) for me, rank in enumerate(task.group)}


def _sent_size(kind: ActKind, task: BoxingTask, me: int) -> int:
    """Elements that the `me`-th rank of a group sends to others."""
    others = len(task.group) - 1
    own = box_size(task.source_boxes[me])
    if kind is ActKind.ALL_GATHER:
        return own * others
    if kind is ActKind.REDUCE_SCATTER:
        return own - box_size(task.target_boxes[me])
    if kind is ActKind.ALL_REDUCE:
        part = own // (others + 1) + (me < own % (others + 1))  # as `balanced_split` cuts it
        return own - part + part * others
    if kind is ActKind.ROTATE:
        return own
    if kind is ActKind.ALL_TO_ALL:
        return sum(box_size(box) for i, box in enumerate(outgoing(task, me)) if box is not None and i != me)
    return 0
