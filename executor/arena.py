"""Arena: one piece of memory shared by tensors that are never alive together.

Tensors are placed from the largest to the smallest, each at the lowest offset where it meets no tensor placed before
whose life overlaps its own (first fit by decreasing size; Pisarchyk and Lee 2020, arXiv:2001.03288, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor that is alive during [`begin`, `end`)."""

    begin: int
    end: int
    nbytes: int


def place(spans: Sequence[Span]) -> tuple[list[int], int]:
    """Offsets in bytes, in the order of `spans`, and the size of the arena."""
    offsets = [0] * len(spans)
    placed: list[int] = []
    for index in sorted(range(len(spans)), key=lambda i: (-spans[i].nbytes, i)):
        span = spans[index]
        rivals = [i for i in placed if spans[i].begin < span.end and span.begin < spans[i].end]
        offset = 0
        for rival in sorted(rivals, key=offsets.__getitem__):
            if offsets[rival] >= offset + span.nbytes:
                break
            offset = max(offset, offsets[rival] + spans[rival].nbytes)
        offsets[index] = offset
        placed.append(index)
    return offsets, max((o + s.nbytes for o, s in zip(offsets, spans, strict=True)), default=0)
