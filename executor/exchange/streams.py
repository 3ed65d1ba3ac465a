"""Streams: buckets and other collectives under way at once, each stream on communicators of its own.

The n-th bucket goes to stream n mod k, on all ranks; in a stream one follows the other, and no stream waits for
another. Where nodes have several ranks, the *upper half* of an all-reduce (sum to the node's first rank, all-reduce
between these) and its *lower half* (broadcast inside the node) have communicators of their own, so that one bucket's
lower half goes on beside the next one's upper half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from executor.exchange.buckets import Fragment, FusedBucket, ListedTensor
from executor.exchange.codecs import Codec, Values
from executor.exchange.progress import InOrder
from executor.exchange.reduction import (
    AllReduce,
    Meeting,
    all_reduce,
    all_reduce_encoded,
    broadcast,
    gather_numbers,
    reduce_to_leader,
)
from executor.exchange.settings import ExchangeSettings
from executor.exchange.tensors import CollectiveKind, dtype_called
from executor.runtime.pieces import Requests
from executor.runtime.transport.base import Group, HostArray, Lane, Transport
from strategy.sbp.sbp import Reduce

_FIRST_LANE = 1000
_LANES_EACH = 4


@dataclass(frozen=True, slots=True)
class _Lanes:
    """Who meets in one stream: all ranks, this node's (twice), and the first of each node."""

    whole: Meeting
    upper: Meeting
    between: Meeting
    lower: Meeting


class CollectiveStreams:
    """This rank's part of all that is under way.

    Args:
        transport: of this rank.
        settings: equal on all ranks.
        residuals: name -> what a codec has lost of this rank's tensor so far, of its size.
        on_done: called with each listed tensor that is through.
        reduces: how ranks that meet reduce what no codec encodes.
    """

    def __init__(
        self,
        transport: Transport,
        settings: ExchangeSettings,
        residuals: dict[str, Values],
        on_done: Callable[[ListedTensor], None],
        reduces: AllReduce = all_reduce,
    ) -> None:
        self.streams = settings.streams
        self.started = 0
        self._rank = transport.rank
        self._codec = settings.codec
        self._residuals = residuals
        self._on_done = on_done
        self._reduces = reduces
        everyone = tuple(range(transport.size))
        each = settings.ranks_per_node
        nodes = [everyone[begin : begin + each] for begin in range(0, transport.size, each)]
        self._nodes = nodes if each > 1 and len(nodes) > 1 else []
        node = next((node for node in self._nodes if self._rank in node), everyone)
        leaders = tuple(node[0] for node in self._nodes)
        self._lanes = [
            _open_lanes(transport, stream, everyone, node, leaders) for stream in range(settings.most_streams)
        ]
        self._queues = [InOrder(self._rank, settings.peer_s) for _ in self._lanes]
        self._lower_queues = [InOrder(self._rank, settings.peer_s) for _ in self._lanes]

    def start_bucket(self, bucket: FusedBucket) -> None:
        """All-reduce a bucket when its stream comes to it."""
        stream = self._next_stream()
        self._queues[stream].append(self._reduced(bucket, stream))

    def start(self, listed: ListedTensor, contributors: int) -> None:
        """Gather or broadcast one tensor."""
        stream = self._next_stream()
        gathers = listed.key.collective is CollectiveKind.ALL_GATHER
        whole = self._lanes[stream].whole
        self._queues[stream].append(
            self._gathered(listed, whole, contributors) if gathers else self._broadcast(listed, whole)
        )

    def advance(self) -> bool:
        """Go on with all streams as far as can be; whether nothing is left."""
        return all([queue.advance() for queue in (*self._queues, *self._lower_queues)])

    @property
    def moved(self) -> int:
        """Transfers that are through."""
        return sum(queue.moved for queue in (*self._queues, *self._lower_queues))

    def _next_stream(self) -> int:
        self.started += 1
        return (self.started - 1) % self.streams

    def _reduced(self, bucket: FusedBucket, stream: int) -> Requests:
        lanes = self._lanes[stream]
        buffer = self._packed(bucket)
        if not self._nodes:
            yield from self._all_reduced(lanes.whole, bucket, buffer, _members(bucket.contributors, lanes.whole.group))
            self._unpack(bucket, buffer)
            return
        inside = _members(bucket.contributors, lanes.upper.group)
        yield from reduce_to_leader(lanes.upper, buffer, bucket.key.reduce, inside)
        if lanes.upper.index == 0:
            counts = [any(_members(bucket.contributors, node)) for node in self._nodes]
            yield from self._all_reduced(lanes.between, bucket, buffer, counts)
        self._lower_queues[stream].append(self._lower_half(bucket, buffer, lanes.lower))

    def _lower_half(self, bucket: FusedBucket, buffer: HostArray, lower: Meeting) -> Requests:
        yield from broadcast(lower, 0, buffer)
        self._unpack(bucket, buffer)

    def _all_reduced(self, meeting: Meeting, bucket: FusedBucket, buffer: HostArray, counts: list[bool]) -> Requests:
        divisor = bucket.contributors.bit_count() if bucket.key.mean else 1
        if self._codec is None or bucket.key.dtype != "float32" or bucket.key.reduce is not Reduce.SUM:
            yield from self._reduces(meeting, buffer, bucket.key.reduce, counts, divisor)
            return
        residual = self._residual(bucket, self._codec)
        yield from all_reduce_encoded(meeting, buffer, self._codec, counts, divisor, residual)
        if residual is not None:
            for fragment, begin, end in _offsets(bucket):
                kept = self._residuals[fragment.listed.key.name]
                kept[fragment.begin : fragment.end] = residual[begin:end]

    def _residual(self, bucket: FusedBucket, codec: Codec) -> Values | None:
        """What was lost of all fragments so far, one behind the other; None where nothing is kept."""
        if not codec.keeps_residual or not bucket.contributors >> self._rank & 1:
            return None
        residual = np.empty(bucket.count, np.float32)
        for fragment, begin, end in _offsets(bucket):
            key = fragment.listed.key
            kept = self._residuals.setdefault(key.name, np.zeros(key.count, np.float32))
            residual[begin:end] = kept[fragment.begin : fragment.end]
        return residual

    def _packed(self, bucket: FusedBucket) -> HostArray:
        """Its fragments one behind the other; a single one is reduced where it lies."""
        (fragment, *others) = bucket.fragments
        if not others and fragment.listed.tensor is not None:
            return fragment.listed.tensor.array.reshape(-1)[fragment.begin : fragment.end]
        buffer = np.empty(bucket.count, dtype_called(bucket.key.dtype))
        for fragment, begin, end in _offsets(bucket):
            tensor = fragment.listed.tensor
            buffer[begin:end] = 0 if tensor is None else tensor.array.reshape(-1)[fragment.begin : fragment.end]
        return buffer

    def _unpack(self, bucket: FusedBucket, buffer: HostArray) -> None:
        for fragment, begin, end in _offsets(bucket):
            listed = fragment.listed
            if listed.tensor is not None and len(bucket.fragments) > 1:
                listed.tensor.array.reshape(-1)[fragment.begin : fragment.end] = buffer[begin:end]
            listed.fragments_left -= 1
            if not listed.fragments_left:
                self._on_done(listed)

    def _gathered(self, listed: ListedTensor, meeting: Meeting, contributors: int) -> Requests:
        key, tensor = listed.key, listed.tensor
        own = np.empty((0, *key.shape), dtype_called(key.dtype)) if tensor is None else tensor.array
        rows = yield from gather_numbers(meeting, own.shape[0] if contributors >> self._rank & 1 else 0)
        whole = np.empty((sum(rows), *key.shape), own.dtype)
        parts = [whole[begin:end] for begin, end in pairwise(accumulate(rows, initial=0))]
        parts[self._rank][...] = own
        gathered = [part if part.size else None for part in parts]
        yield meeting.transport.all_gather(meeting.group, meeting.number, gathered[self._rank], gathered)
        if tensor is not None:
            tensor.array = whole
        self._on_done(listed)

    def _broadcast(self, listed: ListedTensor, meeting: Meeting) -> Requests:
        key, tensor = listed.key, listed.tensor
        buffer = np.zeros(key.shape, dtype_called(key.dtype)) if tensor is None else tensor.array
        yield from broadcast(meeting, key.root, buffer.reshape(-1))
        self._on_done(listed)


def _open_lanes(transport: Transport, stream: int, everyone: Group, node: Group, leaders: Group) -> _Lanes:
    """Open what one stream needs; ranks that are in a group open it in one order."""
    first = _FIRST_LANE + _LANES_EACH * stream
    groups: Mapping[str, Group] = {"whole": everyone}
    if leaders:
        groups = {"whole": everyone, "upper": node, "between": leaders, "lower": node}
    meetings = {}
    for offset, (label, group) in enumerate(groups.items()):
        meetings[label] = Meeting(transport, group, first + offset)
        if transport.rank in group:
            transport.open(first + offset, Lane(group, f"exchange {label} {stream}"))
    whole = meetings["whole"]
    return _Lanes(*(meetings.get(label, whole) for label in ("whole", "upper", "between", "lower")))


def _offsets(bucket: FusedBucket) -> Iterator[tuple[Fragment, int, int]]:
    """Each fragment, and where it lies in the buffer."""
    begin = 0
    for fragment in bucket.fragments:
        end = begin + fragment.end - fragment.begin
        yield fragment, begin, end
        begin = end


def _members(contributors: int, group: Group) -> list[bool]:
    return [bool(contributors >> rank & 1) for rank in group]
