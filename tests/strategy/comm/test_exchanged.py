"""What the busiest rank sends, counted for many all-to-alls at once, is what `rank_parts` sends one by one."""

from __future__ import annotations

import random

import numpy as np

from strategy.comm.exchanged import LACKING, exchanged
from strategy.comm.sent_bytes import most_sent_nbytes
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.sbp import B, NdSbp, Sbp, Split, local_boxes
from strategy.sbp.tensor import DType, Shape, TensorSpec

GROUPS, ROWS = 250, 6
QUOTAS = {"lacking": 100, "copies": 100, "rotated": 100, "three axes": 100, "uneven": 300}


def random_side(draw: random.Random, dims: int, mesh: Shape) -> NdSbp:
    def one(parts: int) -> Sbp:
        rotated = draw.choice((0, 0, draw.randrange(parts)))
        return B if draw.random() < 0.3 else Split(draw.randrange(dims), rotated)

    return tuple(one(parts) for parts in mesh)


def sent_one_by_one(lengths: Shape, before: NdSbp, after: NdSbp, mesh: Shape) -> int:
    boxes = [local_boxes(lengths, side, mesh) for side in (before, after)]
    spec = TensorSpec(lengths, DType.INT32)
    task = BoxingTask(tuple(range(len(boxes[0]))), *boxes)
    return most_sent_nbytes(ActKind.ALL_TO_ALL, task, spec) // spec.dtype.nbytes


def as_numbers(sides: list[tuple[NdSbp, NdSbp]]) -> tuple[np.ndarray, np.ndarray]:
    dims = [[[sbp.dim if isinstance(sbp, Split) else -1 for sbp in side] for side in each] for each in sides]
    shifts = [[[sbp.shift if isinstance(sbp, Split) else 0 for sbp in side] for side in each] for each in sides]
    return np.array(dims, np.int64), np.array(shifts, np.int64)


def test_what_is_counted_at_once_is_what_is_sent() -> None:
    draw, seen = random.Random(5), dict.fromkeys(QUOTAS, 0)
    for _ in range(GROUPS):
        mesh = tuple(draw.choice((1, 2, 3, 4, 6)) for _ in range(draw.choice((1, 2, 2, 3))))
        dims = draw.choice((1, 2, 3))
        blocks = [tuple(draw.randint(1, draw.choice((6, 40))) for _ in range(dims)) for _ in range(ROWS)]
        sides = [(random_side(draw, dims, mesh), random_side(draw, dims, mesh)) for _ in range(ROWS)]
        found = exchanged(np.array(blocks), mesh, *as_numbers(sides)).tolist()
        for block, (before, after), sent in zip(blocks, sides, found, strict=True):
            pieces = {box for side in (before, after) for box in local_boxes(block, side, mesh)}
            sizes = {tuple(end - begin for begin, end in box) for box in pieces}
            lacks = any(0 in size for size in sizes)
            seen["lacking"] += lacks
            assert (sent == LACKING) is lacks
            if not lacks:
                assert sent == sent_one_by_one(block, before, after, mesh), (block, before, after, mesh)
                seen["copies"] += any(sbp == B and parts > 1 for sbp, parts in zip(before, mesh, strict=True))
                seen["rotated"] += any(isinstance(sbp, Split) and sbp.shift > 0 for sbp in (*before, *after))
                seen["three axes"] += len(mesh) == 3
                seen["uneven"] += len(sizes) > 2
    print(seen)
    assert all(seen[what] >= least for what, least in QUOTAS.items()), seen
