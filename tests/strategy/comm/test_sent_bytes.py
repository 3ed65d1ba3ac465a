"""Bytes sent: counted box by box against the table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from strategy.comm.boxing import BoxingStep, step_between
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import most_sent_nbytes, sent_nbytes
from strategy.program.program import ActKind
from strategy.sbp.sbp import (
    B,
    Owner,
    P,
    Sbp,
    Split,
)
from strategy.sbp.tensor import Shape, TensorSpec, box_shape, intersect
from tests.support.boxing_steps import (
    MESHES,
    every_step,
    mesh_of,
)
from tests.support.long_parameters import long_but

TOTALS: dict[ActKind, Callable[[int, int], float]] = {
    ActKind.ALL_GATHER: lambda total, parts: total * (parts - 1),
    ActKind.REDUCE_SCATTER: lambda total, parts: total * (parts - 1),
    ActKind.ALL_REDUCE: lambda total, parts: 2 * total * (parts - 1),
    ActKind.ALL_TO_ALL: lambda total, parts: total * (parts - 1) / parts,
    ActKind.ROTATE: lambda total, parts: total,
    ActKind.SLICE: lambda total, parts: 0,
}
"""Bytes that a group sends in all, T being the bytes of the tensor that the group holds together."""


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(12, 12), (36,), (7, 5), (13, 6)], ids=str)
def test_bytes_sent_are_those_of_the_table(mesh: Shape, shape: Shape) -> None:
    """Exact for the reductions and the gather however uneven; for all-to-all where the splits are even."""
    spec = TensorSpec(shape)
    seen = set()
    for source, step in every_step(spec, mesh):
        for group in mesh_of(mesh).groups(*step.axes):
            task = boxing_task(spec, source, step, mesh_of(mesh), group[0])
            boxes = {*task.source_boxes, *task.target_boxes}
            hull = tuple((min(b for b, _ in dim), max(e for _, e in dim)) for dim in zip(*boxes, strict=True))
            total = math.prod(box_shape(hull)) * spec.dtype.nbytes
            sent = sum(sent_nbytes(step.kind, task, rank, spec) for rank in group)
            if step.kind is not ActKind.ALL_TO_ALL or (shape in ((12, 12), (36,)) and len(step.axes) == 1):
                assert sent == TOTALS[step.kind](total, len(group)), (source, step)
            seen.add(step.kind)
    alone = len(shape) == 1 and len(mesh) == 1
    assert seen == (set(TOTALS) - {ActKind.ALL_TO_ALL} if alone else set(TOTALS))


@pytest.mark.parametrize("shape", [(7, 5), (9, 7, 2)], ids=str)
def test_one_each_an_uneven_all_to_all_are_what_ranks_lack(shape: Shape) -> None:
    spec, checked = TensorSpec(shape), 0
    for mesh in MESHES:
        placement = mesh_of(mesh)
        for source, step in every_step(spec, mesh):
            if step.kind is ActKind.ALL_TO_ALL:
                task = boxing_task(spec, source, step, placement, placement.devices[0])
                lacking = 0
                for before, after in zip(task.source_boxes, task.target_boxes, strict=True):
                    kept = intersect(before, after)
                    lacking += math.prod(box_shape(after)) - (math.prod(box_shape(kept)) if kept else 0)
                sent = sum(sent_nbytes(step.kind, task, rank, spec) for rank in task.group)
                assert sent == 4 * lacking
                checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        *itertools.product([(12, 12), (7, 5), (13, 6, 4)], MESHES),
        *long_but(itertools.product([(12, 12), (7, 5), (13, 6, 4)], [(2, 3, 2)]), 1),
    ],
    ids=str,
)
def test_the_busiest_rank_is_found(mesh: Shape, shape: Shape) -> None:
    spec, placement, seen = TensorSpec(shape), mesh_of(mesh, first=3), set()
    for source, step in every_step(spec, mesh):
        task = boxing_task(spec, source, step, placement, placement.devices[0])
        wanted = max(sent_nbytes(step.kind, task, rank, spec) for rank in task.group)
        assert most_sent_nbytes(step.kind, task, spec) == wanted, (source, step)
        seen.add(step.kind)
    assert seen == set(TOTALS)


@pytest.mark.parametrize(
    ("source", "target", "kind", "nbytes"),
    [
        (P, Owner(1), ActKind.REDUCE_SCATTER, 2),
        (Owner(1), B, ActKind.ALL_GATHER, 2),
        (Split(0), Owner(1), ActKind.ALL_TO_ALL, 2 / 3),
        (Owner(1), Split(1), ActKind.ALL_TO_ALL, 2 / 3),
        (Owner(1), Owner(2), ActKind.ALL_TO_ALL, 1),
        (B, Owner(1), ActKind.SLICE, 0),
        (Owner(1), P, ActKind.SLICE, 0),
    ],
)
def test_what_an_owner_gives_and_gets(source: Sbp, target: Sbp, kind: ActKind, nbytes: float) -> None:
    """In tensors of T bytes over three ranks: reduce and broadcast 2 T, gather and scatter 2/3 T, a message T."""
    spec, placement = TensorSpec((6, 9)), mesh_of((3,))
    step = step_between((source,), (target,))
    assert step == BoxingStep(kind, (0,), (target,))
    task = boxing_task(spec, (source,), step, placement, 0)
    sent = [sent_nbytes(kind, task, rank, spec) for rank in range(3)]
    assert sum(sent) == nbytes * spec.nbytes
    assert most_sent_nbytes(kind, task, spec) == max(sent)
    if source == Owner(1):
        assert sent[0] == sent[2] == 0
