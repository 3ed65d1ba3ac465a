"""Boxing on small meshes: steps listed, priced and carried out on real pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from strategy.comm.boxing import BoxingStep, layouts_of, step_between
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import sent_nbytes
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import (
    NdSbp,
    Owner,
    Reduce,
    Split,
)
from strategy.sbp.tensor import Box, Shape, TensorSpec
from tests.support.oracle import box_step
from tests.support.step_prices import StepPrice

MESHES: tuple[Shape, ...] = ((2,), (3,), (2, 2), (2, 3))


SHAPES: tuple[Shape, ...] = ((12, 12), (7, 5), (6, 1, 4), (9,), ())
"""Even and uneven; with a dim that cannot be cut; without dims."""


def mesh_of(mesh: Shape, first: int = 0) -> Placement:
    names = ("data", "tensor", "depth")[: len(mesh)]
    return Placement(tuple(range(first, first + math.prod(mesh))), mesh, names)


def prices(seed: int) -> StepPrice:
    """Arbitrary but fixed prices, many of them zero, so that chains of every kind come out cheapest."""

    def price(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        text = f"{seed}{step.kind}{step.axes}{source}{step.target}"
        return float(np.random.default_rng(list(text.encode())).choice([0.0, 1.0, 2.0, 3.5, 10.0]))

    return price


def one_each(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
    return 1.0


def every_step(
    spec: TensorSpec,
    mesh: Shape,
    reduces: Iterable[Reduce] = (Reduce.SUM,),
    shifts: Iterable[int] = (1,),
    owners: Iterable[Owner] = (),
) -> Iterator[tuple[NdSbp, BoxingStep]]:
    """Among the layouts in order, those that are rotated along dim 0, and those of owners."""
    special = [*(Split(0, shift) for shift in shifts), *owners]
    layouts = layouts_of(spec, mesh, reduces=reduces, special=[special] * len(mesh))
    for source, target in itertools.product(layouts, repeat=2):
        step = step_between(source, target)
        if step is not None:
            yield source, step


def carry_out(
    pieces: dict[int, np.ndarray], spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement
) -> dict[int, np.ndarray]:
    after: dict[int, np.ndarray] = {}
    for group in placement.groups(*step.axes):
        tasks = [boxing_task(spec, source, step, placement, rank) for rank in group]
        assert all(task == tasks[0] for task in tasks)
        assert tasks[0].group == group
        after |= box_step(step.kind, tasks[0], pieces)
    return after


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(begin, end) for begin, end in box)))


def most_sent_on(placement: Placement) -> StepPrice:
    """Bytes of the busiest rank, and one for the step."""

    def price(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        tasks = (boxing_task(spec, source, step, placement, rank) for rank in placement.devices)
        pairs = zip(placement.devices, tasks, strict=True)
        return 1.0 + max(sent_nbytes(step.kind, task, rank, spec) for rank, task in pairs)

    return price
