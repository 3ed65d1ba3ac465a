"""Reductions by the collective library: where the transport adds up itself, terms become a sum by one call.

P -> B is its all-reduce, P -> S(d) its reduce-scatter where every rank's piece is as large; other pieces are exchanged
and combined in rank order, as on the host. The library's order of adding up is its own: the same on all ranks of a
call, so that they hold the same bits, but not the order of ranks. Its algorithms know the nodes, so that tasks on two
levels are one call, too.
"""

from __future__ import annotations

from executor.runtime.pieces import Part, Requests, Start, piece_of
from strategy.program.program import ActKind
from strategy.sbp.tensor import Box

REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""Dtypes that libraries add up."""


def library_reduction(kind: ActKind, part: Part) -> Start | None:
    """The act of a rank, if it is one call of the transport's library; else None."""
    if not part.transport.reduces or str(part.source.dtype) not in REDUCIBLE or not part.source.size:
        return None
    if kind is ActKind.ALL_REDUCE:
        return _all_reduce(part)
    return _reduce_scatter(part) if kind is ActKind.REDUCE_SCATTER else None


def _all_reduce(part: Part) -> Start:
    task, number = part.task, part.number

    def act() -> Requests:
        yield part.transport.all_reduce(task.group, number, part.source, part.target, task.reduce)

    return act


def _reduce_scatter(part: Part) -> Start | None:
    """Every rank's piece behind the one before: in place where rows are cut in rank order, else packed."""
    task, number = part.task, part.number
    views = [piece_of(part.source, box, part.frame) for box in task.target_boxes]
    size = part.target.size
    if any(view.size != size for view in views) or size * len(views) != part.source.size:
        return None
    in_a_row = all(view.flags.c_contiguous for view in views) and [
        _offset(box, part.frame) for box in task.target_boxes
    ] == [i * size for i in range(len(views))]
    packed = part.source.reshape(-1)
    if not in_a_row:
        packed = part.scratch.get("packed terms", (part.source.size,), part.source.dtype)
    places = [packed[i * size : (i + 1) * size].reshape(view.shape) for i, view in enumerate(views)]

    def act() -> Requests:
        if not in_a_row:
            for place, view in zip(places, views, strict=True):
                part.xp.copyto(place, view)
        yield part.transport.reduce_scatter(task.group, number, packed, part.target, task.reduce)

    return act


def _offset(box: Box, frame: Box) -> int:
    """Of the first element of a box, in the elements of a frame, row by row."""
    at = 0
    for (begin, _), (low, high) in zip(box, frame, strict=True):
        at = at * (high - low) + begin - low
    return at
