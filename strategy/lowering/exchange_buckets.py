"""Exchange buckets: gradients that are exchanged one after another go together, as one collective.

A collective takes a latency, however little it moves; most gradients are small. So they are exchanged in buckets, in
the order in which backward passes make them; a bucket goes off with its last member, or before the next one would make
it larger than `bucket_bytes`. One that is larger by itself goes alone.

    compute     | dw 4 | dw 3 | dw 2 | dw 1 |                     each by itself      exchange  e4  e3  e2  e1
    exchange           | e4 + e3     | e2 + e1 |                  in buckets of two

Packing is free: members are registers that lie next to each other in the memory of the rank (`neighbours`), and an
all-reduce takes the memory of all of them as one flat tensor. A reduce-scatter (ZeRO) gives each rank its pieces of all
members, which do not lie together in tensors that lie one after another: they are copied together, and arrive in
registers that lie next to each other. What is summed up are the terms of every element over the ranks in their order,
wherever the element lies; so that buckets change no bit.

What takes the result of an exchange in a chunk (a sum over micro-batches) follows the bucket instead of its member. Of
what is exchanged once per step, which in a stage's order stands right before the update that wants it, all that is
there goes ahead of the first update.

Members of a bucket have one kind of collective, ranks, dtype and reduction. What is left alone: gathers of parameters,
which are no gradients; tensors in several blocks, ragged ones and those of owners (each is wanted by one rank only, so
that there is nothing to share); and the further steps of an exchange of several.

Horovod (Sergeev and Del Balso 2018, arXiv:1802.05799, section 4) calls this tensor fusion, PyTorch (Li et al. 2020,
arXiv:2006.15704, section 3.2.3) gradient bucketing.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from strategy.base.errors import present
from strategy.comm.boxing import BoxingStep
from strategy.comm.hierarchical import box_size
from strategy.cost.communication import largest_nbytes
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Phase, Role
from strategy.layout.arrangement import Action, Arrangement
from strategy.layout.gradient_exchange import exchanged, takers
from strategy.layout.objective import Priced
from strategy.layout.overlapped import is_overlapped
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.placement import Space
from strategy.sbp.sbp import B, NdSbp, Owner, Split
from strategy.sbp.tensor import Box, TensorSpec


@dataclass(frozen=True, slots=True)
class BucketedArrangement:
    """What a program is made of: the arrangement with buckets for their members, and the features of its actions."""

    arrangement: Arrangement
    features: Sequence[Features]


def in_buckets(priced: Priced) -> BucketedArrangement:
    """The actions of a laid-out graph, with gradients in buckets as its pipeline says."""
    plain = BucketedArrangement(priced.arrangement, priced.features)
    if not priced.pipeline.bucket_bytes:
        return plain
    pairs = _Buckets(priced, plain).filled()
    actions, features = zip(*pairs, strict=True)
    return BucketedArrangement(replace(priced.arrangement, actions=actions), features)


def bucketable_bytes(priced: Priced) -> tuple[int, ...]:
    """Bytes of every gradient that may go into a bucket, on the rank that holds most of it, in their order."""
    candidates = _Candidates(priced)
    return tuple(
        candidates.nbytes(action)
        for index, action in enumerate(priced.arrangement.actions)
        if candidates.key(index, action) is not None
    )


Key = Hashable
"""What members of a bucket have in common."""
Pair = tuple[Action, Features]


class _Candidates:
    """Which actions may go into buckets, and with which others."""

    def __init__(self, priced: Priced) -> None:
        self.graph: Graph = priced.graph
        self.arrangement = priced.arrangement
        self.placements = priced.layout.stages.placements
        self.gradients = exchanged(priced.graph)
        actions = priced.arrangement.actions
        self.first_of: dict[int, int] = {}
        """Tensor -> the all-reduce that reads it first: it lies in one row only."""
        for index, action in enumerate(actions):
            if action.kind is ActKind.ALL_REDUCE:
                self.first_of.setdefault(action.reads[0], index)
        self.reduced = {a.writes[0] for a in actions if a.step is not None and a.kind.is_communication}
        """What communication has written: reading that is a further step."""
        self.of_update = {t for a in actions if a.phase is Phase.UPDATE for t in (*a.writes, *a.updates)}

    def key(self, index: int, action: Action) -> Key | None:
        """Equal of those that may share a bucket; None of what goes alone."""
        if not action.kind.reduces or action.step is None:
            return None
        source, target = (self.arrangement.tensors[tensor] for tensor in (action.reads[0], action.writes[0]))
        value = self.graph.values[target.value]
        if not (action.phase is Phase.UPDATE or target.value in self.gradients):
            return None
        if action.kind is ActKind.ALL_REDUCE and self.first_of[action.reads[0]] != index:
            return None
        if source.lifetime.blocks != 1 or target.lifetime.blocks != 1 or action.reads[0] in self.reduced:
            return None
        if value.spec.ragged is not None or value.space is not Space.DEVICE or value.role is Role.VARIABLE:
            return None
        if any(isinstance(sbp, Owner) for sbp in (*source.layout, *target.layout)):
            return None
        terms = tuple(source.layout[axis] for axis in action.step.axes)
        beside = is_overlapped(self.graph, target.value, action.rate, action.phase)
        waits = action.reads[0] in self.of_update
        when = action.stage, action.phase, action.lap, action.rate, waits, beside
        return when, action.kind, action.step.axes, terms, value.spec.dtype

    def nbytes(self, action: Action) -> int:
        """Of an exchange, on the rank that holds most."""
        held = self.arrangement.tensors[action.reads[0]]
        return largest_nbytes(self.graph.values[held.value].spec, held.layout, self.placements[action.stage].mesh)


@dataclass(slots=True)
class _Open:
    """A bucket that is being filled."""

    members: list[int] = field(default_factory=list)
    nbytes: int = 0


class _Buckets:
    """Walks over the actions in order, and holds back exchanges until their bucket goes off."""

    def __init__(self, priced: Priced, plain: BucketedArrangement) -> None:
        self.priced = priced
        self.candidates = _Candidates(priced)
        actions = plain.arrangement.actions
        self.features = dict(enumerate(plain.features))
        self.keys = {i: key for i, a in enumerate(actions) if (key := self.candidates.key(i, a)) is not None}
        self.made_at = {op.name: time for time, op in enumerate(priced.graph.ops)}
        self.takers = takers(priced.graph, plain.arrangement)
        self.order = self._as_soon_as_whole(actions)
        self.last = {self.keys[index]: index for index in self.order if index in self.keys}
        self.open: dict[Key, _Open] = {}
        self.pending: dict[int, set[Key]] = {}
        """Tensor -> the buckets that must go off before it is there."""
        self.deferred: list[tuple[int, set[Key]]] = []
        self.count: dict[int, int] = {}
        self.found: list[Pair] = []

    def filled(self) -> list[Pair]:
        """The actions with their features, buckets for their members."""
        actions = self.priced.arrangement.actions
        for index in self.order:
            action = actions[index]
            waits = {key for tensor in (*action.reads, *action.updates) for key in self.pending.get(tensor, ())}
            if waits and index in self.takers and index not in self.keys:
                self.deferred.append((index, waits))
                self.pending |= {tensor: set(waits) for tensor in (*action.writes, *action.updates)}
                continue
            for key in sorted(waits, key=list(self.open).index):
                self._go_off(key)
            if index in self.keys:
                self._add(index, action)
            else:
                self.found.append((action, self.features[index]))
        return self.found

    def _add(self, index: int, action: Action) -> None:
        key, nbytes, most = self.keys[index], self.candidates.nbytes(action), self.priced.pipeline.bucket_bytes
        if key in self.open and self.open[key].nbytes + nbytes > most:
            self._go_off(key)
        bucket = self.open.setdefault(key, _Open())
        bucket.members.append(index)
        bucket.nbytes += nbytes
        self.pending[action.writes[0]] = {key}
        if self.last[key] == index or bucket.nbytes >= most:
            self._go_off(key)

    def _go_off(self, key: Key) -> None:
        """Exchange what a bucket holds, and let go on what waits for nothing else."""
        self.found.append(self._exchange(self.open.pop(key).members))
        for waits in self.pending.values():
            waits.discard(key)
        self.pending = {tensor: waits for tensor, waits in self.pending.items() if waits}
        left = []
        for index, waits in self.deferred:
            waits.discard(key)
            if waits:
                left.append((index, waits))
            else:
                self.found.append((self.priced.arrangement.actions[index], self.features[index]))
        self.deferred = left

    def _exchange(self, indices: Sequence[int]) -> Pair:
        """One action for all members; of a single one, that itself."""
        members = [self.priced.arrangement.actions[index] for index in indices]
        first = members[0]
        number = self.count[first.stage] = self.count.get(first.stage, -1) + 1
        if len(members) == 1:
            return replace(first, turn=number), self.features[indices[0]]
        held = self.priced.arrangement.tensors[first.reads[0]]
        dtype = self.priced.graph.values[held.value].spec.dtype
        size = sum(map(self.candidates.nbytes, members)) // dtype.nbytes
        step, source = _flat(present(first.step, "the step of an exchange"), held.layout)
        placement = self.priced.layout.stages.placements[first.stage]
        features = self.priced.cost.step_features(TensorSpec((size,), dtype), source, step, placement)
        fused = replace(
            first,
            name=f"bucket {number}@{first.stage}:{first.kind}",
            time=max(member.time for member in members),
            reads=tuple(member.reads[0] for member in members),
            writes=tuple(member.writes[0] for member in members),
            members=tuple(members),
            turn=number,
        )
        return fused, features

    def _as_soon_as_whole(self, actions: Sequence[Action]) -> list[int]:
        """The actions in order, but that what the update exchanges comes as soon as it is there, in the order made."""
        late: dict[int, list[int]] = {}
        for index, action in enumerate(actions):
            if action.phase is Phase.UPDATE:
                late.setdefault(action.stage, []).append(index)
        order = list(range(len(actions)))
        for slots in late.values():
            for slot, index in zip(slots, self._hoisted(actions, slots), strict=True):
                order[slot] = index
        return order

    def _hoisted(self, actions: Sequence[Action], slots: Sequence[int]) -> Iterator[int]:
        written = {tensor for index in slots for tensor in (*actions[index].writes, *actions[index].updates)}
        behind: dict[int, list[int]] = {}
        for index in sorted((i for i in slots if i in self.keys), key=lambda i: self._made_at(actions[i])):
            behind.setdefault(actions[index].reads[0], []).append(index)
        moved = {index for found in behind.values() for index in found}
        for tensor, found in behind.items():
            if tensor not in written:
                yield from found
        for index in slots:
            if index not in moved:
                yield index
                for tensor in (*actions[index].writes, *actions[index].updates):
                    yield from behind.get(tensor, ())

    def _made_at(self, action: Action) -> int:
        """When the graph makes what an exchange moves."""
        value = self.priced.arrangement.tensors[action.reads[0]].value
        return self.made_at[self.priced.graph.producer[value].name]


def _flat(step: BoxingStep, source: NdSbp) -> tuple[BoxingStep, NdSbp]:
    """The step of an exchange on the memory of its members as one flat tensor, and that tensor's layout before it."""
    shared = B if step.kind is ActKind.ALL_REDUCE else Split(0)
    before, after = (
        tuple(sbp if axis in step.axes else B for axis, sbp in enumerate(layout))
        for layout in (source, (shared,) * len(source))
    )
    return BoxingStep(step.kind, step.axes, after), before


def bucket_task(kind: ActKind, members: Sequence[BoxingTask]) -> BoxingTask:
    """One rank's part in the exchange of members as one flat tensor, of which all ranks that meet hold as much."""
    first, me = members[0], range(len(members[0].group))
    size = sum(box_size(member.source_boxes[0]) for member in members)
    whole: tuple[Box, ...] = (((0, size),),) * len(me)
    if kind is ActKind.ALL_REDUCE:
        return replace(first, source_boxes=whole, target_boxes=whole)
    ends = itertools.accumulate((sum(box_size(m.target_boxes[i]) for m in members) for i in me), initial=0)
    cuts: tuple[Box, ...] = tuple((cut,) for cut in itertools.pairwise(ends))
    return replace(first, source_boxes=whole, target_boxes=cuts, members=tuple(members))
