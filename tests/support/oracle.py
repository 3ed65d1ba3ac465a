"""The super device: a logical tensor scattered over a mesh under a layout, put together again, and boxed.

Written from the definitions alone (split concatenates, broadcast is equal everywhere, partial combines), axis after
axis, without the boxes of `strategy.sbp.sbp`, so that it can judge them. Pieces are listed in row-major mesh order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.sbp import Broadcast, NdSbp, Owner, Reduce, Split
from strategy.sbp.tensor import Box, Shape, box_shape, intersect, within

Array = npt.NDArray[Any]


def scatter(array: Array, nd_sbp: NdSbp, mesh: Shape, rng: np.random.Generator) -> list[Array]:
    """The piece of every rank; partial terms are random and make up the tensor."""
    if not mesh:
        return [array.copy()]
    sbp, parts = nd_sbp[0], mesh[0]
    if isinstance(sbp, Split):
        in_order = np.array_split(array, parts, axis=sbp.dim)
        pieces = [in_order[(rank + sbp.shift) % parts] for rank in range(parts)]
    elif isinstance(sbp, Broadcast):
        pieces = [array] * parts
    elif isinstance(sbp, Owner):
        pieces = [array if rank == sbp.coordinate else array[(slice(0),) * array.ndim] for rank in range(parts)]
    else:
        pieces = _terms(array, sbp.reduce, parts, rng)
    return [piece for part in pieces for piece in scatter(part, nd_sbp[1:], mesh[1:], rng)]


def _terms(array: Array, reduce: Reduce, parts: int, rng: np.random.Generator) -> list[Array]:
    """Sums that cancel; or, of maxima and minima, the tensor at random places and less, or more, elsewhere."""
    if reduce is Reduce.SUM:
        terms = [np.asarray(rng.standard_normal(array.shape), array.dtype) for _ in range(parts - 1)]
        return [*terms, np.asarray(array - sum(terms))]
    away = -1 if reduce is Reduce.MAX else 1
    holder = rng.integers(0, parts, array.shape)
    shifts = [np.where(holder == i, 0, away * rng.integers(0, 9, array.shape)) for i in range(parts)]
    return [np.asarray(array + shift.astype(array.dtype)) for shift in shifts]


def combine(terms: Sequence[Array], reduce: Reduce) -> Array:
    """What terms make up, neighbours first: pairs, then pairs of pairs, and so on; what has no neighbour waits."""
    function = {Reduce.SUM: np.add, Reduce.MAX: np.maximum, Reduce.MIN: np.minimum}[reduce]
    left = list(terms)
    while len(left) > 1:
        pairs = itertools.zip_longest(left[::2], left[1::2])
        left = [one if other is None else function(one, other) for one, other in pairs]
    return np.asarray(left[0])


def gather(pieces: Sequence[Array], nd_sbp: NdSbp, mesh: Shape) -> Array:
    """The logical tensor.

    Raises:
        ValueError: copies differ, or pieces do not fit together.
    """
    if not mesh:
        (piece,) = pieces
        return piece
    sbp, stride = nd_sbp[0], math.prod(mesh[1:])
    parts = [gather(pieces[i * stride : (i + 1) * stride], nd_sbp[1:], mesh[1:]) for i in range(mesh[0])]
    if isinstance(sbp, Split):
        return np.concatenate([parts[(piece - sbp.shift) % len(parts)] for piece in range(len(parts))], axis=sbp.dim)
    if isinstance(sbp, Owner):
        if any(part.size for rank, part in enumerate(parts) if rank != sbp.coordinate):
            raise ValueError("others hold something")
        return parts[sbp.coordinate]
    if len({part.shape for part in parts}) > 1:
        raise ValueError(f"ranks hold different shapes under {sbp}")
    if isinstance(sbp, Broadcast):
        if not all(close(part, parts[0]) for part in parts):
            raise ValueError("copies differ")
        return parts[0]
    return combine(parts, sbp.reduce)


def close(found: Array, wanted: Array) -> bool:
    """Equal up to the rounding of another order of summation."""
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-9))


def box_step(kind: ActKind, task: BoxingTask, pieces: Mapping[int, Array]) -> dict[int, Array]:
    """What every rank of the group holds after one boxing step, from what the ranks of the group alone hold."""
    before = [pieces[rank] for rank in task.group]
    held = list(zip(before, task.source_boxes, strict=True))
    after: dict[int, Array] = {}
    for me, (rank, wanted) in enumerate(zip(task.group, task.target_boxes, strict=True)):
        if kind in (ActKind.ALL_REDUCE, ActKind.REDUCE_SCATTER):
            cut = [array[within(wanted, box)] for array, box in held]
            after[rank] = combine(cut, task.reduce)
        elif kind in (ActKind.ALL_GATHER, ActKind.ALL_TO_ALL, ActKind.ROTATE):
            after[rank] = assemble(wanted, list({box: (array, box) for array, box in held}.values()))
        else:
            mine, box = held[me]
            after[rank] = np.full(box_shape(wanted), neutral(task.reduce, mine.dtype), mine.dtype)
            shared = intersect(box, wanted)
            terms = all(other == wanted for other in task.target_boxes)
            if shared is not None and not (terms and box in task.source_boxes[:me]):
                after[rank][within(shared, wanted)] = mine[within(shared, box)]
    return after


def neutral(reduce: Reduce, dtype: np.dtype[Any]) -> Any:
    """What adds nothing to terms."""
    if reduce is Reduce.SUM:
        return 0
    limits = np.iinfo(dtype) if dtype.kind == "i" else None
    if reduce is Reduce.MAX:
        return -math.inf if limits is None else limits.min
    return math.inf if limits is None else limits.max


def transfer(task: TransferTask, pieces: Mapping[int, Array]) -> dict[int, Array]:
    """What every receiver holds after a transfer between placements."""
    return {
        rank: assemble(
            wanted,
            [
                (pieces[m.source][within(m.box, task.source_boxes[m.source])], m.box)
                for m in task.messages
                if m.target == rank
            ],
        )
        for rank, wanted in task.target_boxes.items()
    }


def assemble(wanted: Box, held: Sequence[tuple[Array, Box]]) -> Array:
    """The array of box `wanted` from pieces.

    Raises:
        ValueError: a cell is covered never or twice.
    """
    out = np.zeros(box_shape(wanted), held[0][0].dtype if held else np.float64)
    covered = np.zeros(box_shape(wanted), np.int64)
    for array, box in held:
        shared = intersect(box, wanted)
        if shared is not None:
            out[within(shared, wanted)] = array[within(shared, box)]
            covered[within(shared, wanted)] += 1
    if (covered != 1).any():
        raise ValueError(f"cells of {wanted} are covered {sorted(set(covered.ravel().tolist()))} times")
    return out
