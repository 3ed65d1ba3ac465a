"""The ring all-reduce of NCCL and of Horovod: what the rival of `sbplan bench exchange` reduces its buckets by.

    rank i:  part i -> i + 1, what i - 1 sends is added to the part before, and so on: n - 1 times
             then the sums go round: n - 1 times more

Every edge carries 2 (n - 1) / n of the bytes (Patarasuk and Yuan 2009), one edge leaves every node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from executor.exchange.reduction import Meeting, part_bounds
from executor.runtime.pieces import Requests
from executor.runtime.transport.base import HostArray, PendingTransfer
from strategy.sbp.sbp import Reduce


def ring_all_reduce(
    meeting: Meeting, buffer: HostArray, reduce: Reduce, contributing: Sequence[bool], divisor: int = 1
) -> Requests:
    """Sum a flat buffer over all ranks of a group, in place, and divide it; who gives nothing gives zeros.

    Raises:
        ValueError: it is no sum that is wanted.
    """
    if reduce is not Reduce.SUM:
        raise ValueError(f"the ring sums, and has no {reduce}")
    count, here = len(meeting.group), meeting.index
    parts = [buffer[begin:end] for begin, end in part_bounds(buffer.size, count)]
    for step in range(count - 1):
        theirs = parts[(here - step - 1) % count]
        heard = np.empty_like(theirs)
        yield from _passed_on(meeting, parts[(here - step) % count], heard)
        theirs += heard
    whole = parts[(here + 1) % count]
    if divisor > 1:
        whole /= whole.dtype.type(divisor)
    for step in range(count - 1):
        yield from _passed_on(meeting, parts[(here + 1 - step) % count], parts[(here - step) % count])


def _passed_on(meeting: Meeting, sent: HostArray, heard: HostArray) -> Iterator[PendingTransfer]:
    """One step: to the next rank, from the one before."""
    count, here = len(meeting.group), meeting.index
    send: list[HostArray | None] = [None] * count
    receive: list[HostArray | None] = [None] * count
    send[(here + 1) % count] = sent if sent.size else None
    receive[(here - 1) % count] = heard if heard.size else None
    yield meeting.transport.exchange(meeting.group, meeting.number, send, receive)
