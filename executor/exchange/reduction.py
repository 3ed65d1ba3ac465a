"""Reductions of one bucket, in an order that makes all ranks end up with the same bits.

Every rank combines one part of the bucket, in the order of ranks, and all gather the combined parts. With a codec what
travels is encoded, and everybody decodes the same bytes. What a transport needs (lanes, numbers) is the caller's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np

from executor.exchange.codecs import Codec, Encoded, Values
from executor.runtime.pieces import Requests
from executor.runtime.transport.base import Group, HostArray, PendingTransfer, Transport
from strategy.sbp.sbp import Reduce

_UFUNC = {Reduce.SUM: np.add, Reduce.MIN: np.minimum, Reduce.MAX: np.maximum}


@dataclass(frozen=True, slots=True)
class Meeting:
    """Some ranks that reduce together, and the number by which their collectives travel."""

    transport: Transport
    group: Group
    number: int

    @property
    def index(self) -> int:
        """Of this rank in the group."""
        return self.group.index(self.transport.rank)


class AllReduce(Protocol):
    """A way to combine a flat buffer with those of the group's contributing ranks, in place, and to divide it."""

    def __call__(
        self, meeting: Meeting, buffer: HostArray, reduce: Reduce, contributing: Sequence[bool], divisor: int = 1
    ) -> Requests:
        """This rank's part."""


def all_reduce(
    meeting: Meeting, buffer: HostArray, reduce: Reduce, contributing: Sequence[bool], divisor: int = 1
) -> Requests:
    """Combine a flat buffer with those of the group's contributing ranks, in place, and divide it."""
    parts = [buffer[begin:end] for begin, end in part_bounds(buffer.size, len(meeting.group))]
    own = parts[meeting.index]
    heard = np.empty((len(parts), own.size), buffer.dtype)
    send, receive = list(map(_something, parts)), list(map(_something, heard))
    send[meeting.index] = receive[meeting.index] = None  # what stays here is combined where it lies
    yield meeting.transport.exchange(meeting.group, meeting.number, send, receive)
    rows = [*heard[: meeting.index], own, *heard[meeting.index + 1 :]]
    combine_rows([row for row, counts in zip(rows, contributing, strict=True) if counts], reduce, own, divisor)
    gathered = list(map(_something, parts))
    yield meeting.transport.all_gather(meeting.group, meeting.number, gathered[meeting.index], gathered)


def all_reduce_encoded(
    meeting: Meeting,
    buffer: Values,
    codec: Codec,
    contributing: Sequence[bool],
    divisor: int,
    residual: Values | None,
) -> Requests:
    """Sum a flat buffer of float32 in place, encoded on its way, and divide it.

    Args:
        meeting: who.
        buffer: shape [count].
        codec: by what.
        contributing: whose values count, by the group's order.
        divisor: of the sum.
        residual: shape [count]; what earlier blocks lost, and afterwards what this one has; None keeps none.
    """
    if codec.is_allreducible:
        yield from _by_parts(meeting, buffer, codec, contributing, divisor)
        return
    if residual is not None:
        buffer += residual
    block = codec.encode(buffer)
    if residual is not None:
        np.subtract(buffer, codec.decode(block, buffer.size), out=residual)
    heard: list[HostArray] = [np.empty_like(block) for _ in meeting.group]
    heard[meeting.index] = block
    yield meeting.transport.all_gather(meeting.group, meeting.number, block, heard)
    _sum_decoded(codec, heard, contributing, buffer, divisor)


def _by_parts(meeting: Meeting, buffer: Values, codec: Codec, contributing: Sequence[bool], divisor: int) -> Requests:
    parts = [buffer[begin:end] for begin, end in part_bounds(buffer.size, len(meeting.group))]
    own = parts[meeting.index]
    blocks: list[HostArray] = [codec.encode(part) for part in parts]
    sent = np.concatenate(blocks)
    bounds = [0, *accumulate(block.size for block in blocks)]
    send = [sent[begin:end] for begin, end in pairwise(bounds)]
    heard = np.empty((len(parts), codec.nbytes(own.size)), np.uint8)
    yield meeting.transport.exchange(meeting.group, meeting.number, send, list(heard))
    total = np.empty(own.size, np.float32)
    _sum_decoded(codec, list(heard), contributing, total, divisor)
    send[meeting.index][:] = codec.encode(total)
    yield meeting.transport.all_gather(meeting.group, meeting.number, send[meeting.index], send)
    for part, block in zip(parts, send, strict=True):
        part[:] = codec.decode(block, part.size)


def _sum_decoded(
    codec: Codec, blocks: Sequence[Encoded], contributing: Sequence[bool], into: Values, divisor: int
) -> None:
    rows = [codec.decode(block, into.size) for block, counts in zip(blocks, contributing, strict=True) if counts]
    combine_rows(rows, Reduce.SUM, into, divisor)


def reduce_to_leader(meeting: Meeting, buffer: HostArray, reduce: Reduce, contributing: Sequence[bool]) -> Requests:
    """The upper half inside a node: the first rank of the group combines everybody's buffer, in place."""
    leads = meeting.index == 0
    heard = np.empty((len(meeting.group) if leads else 0, buffer.size), buffer.dtype)
    send: list[HostArray | None] = [_something(buffer), *[None] * (len(meeting.group) - 1)]
    receive = [_something(row) for row in heard] if leads else [None] * len(meeting.group)
    yield meeting.transport.exchange(meeting.group, meeting.number, send, receive)
    if leads:
        combine_rows([row for row, counts in zip(heard, contributing, strict=True) if counts], reduce, buffer)


def broadcast(meeting: Meeting, root: int, buffer: HostArray) -> Requests:
    """Fill a buffer with that of the group's `root`-th rank."""
    nothing: list[HostArray | None] = [None] * len(meeting.group)
    send, receive = nothing, list(nothing)
    if meeting.index == root:
        send = [None if index == root else _something(buffer) for index in range(len(meeting.group))]
    else:
        receive[root] = _something(buffer)
    yield meeting.transport.exchange(meeting.group, meeting.number, send, receive)


def gather_numbers(meeting: Meeting, mine: int) -> Generator[PendingTransfer, None, list[int]]:
    """A number of every rank, by the group's order."""
    numbers: list[HostArray] = [np.zeros(1, np.int64) for _ in meeting.group]
    numbers[meeting.index][0] = mine
    yield meeting.transport.all_gather(meeting.group, meeting.number, numbers[meeting.index], numbers)
    return [int(number[0]) for number in numbers]


def combine_rows(rows: Sequence[HostArray], reduce: Reduce, into: HostArray, divisor: int = 1) -> None:
    """Combine rows in their order, halves in float32, and divide the result; without rows it is zeros.

    The rows, one of which may be `into`, are not kept.
    """
    if not rows:
        into[...] = 0
        return
    wide = np.dtype(np.float32) if into.dtype.itemsize == 2 and into.dtype.kind in "fV" else into.dtype
    total, *others = (row.astype(wide, copy=False) for row in rows)
    for place, row in enumerate(others, 1):
        # The last sum is the result; none before it is written over a row that is still to come.
        is_last = place == len(others) and wide == into.dtype
        total = _UFUNC[reduce](total, row, out=into if is_last else None if total is into else total)
    if divisor > 1:
        total /= total.dtype.type(divisor)
    if total is not into:
        into[...] = total.astype(into.dtype, copy=False)


def part_bounds(count: int, parts: int) -> list[tuple[int, int]]:
    """Cut `count` elements into parts that differ by one at most."""
    least, larger = divmod(count, parts)
    begins = [index * least + min(index, larger) for index in range(parts + 1)]
    return list(pairwise(begins))


def _something(array: HostArray) -> HostArray | None:
    """What a transport moves: an array, or None of no elements."""
    return array if array.size else None
