"""Single steps between layouts: carried out on real pieces, legality tried by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from strategy.comm.boxing import LARGEST_REGROUP, BoxingStep, layouts_of, step_between, steps_among
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import sent_nbytes
from strategy.program.program import ActKind
from strategy.sbp.sbp import (
    B,
    Broadcast,
    NdSbp,
    Owner,
    P,
    Partial,
    Reduce,
    Sbp,
    Split,
    has_partial,
    is_legal_layout,
    local_box,
)
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.support.boxing_steps import (
    MESHES,
    SHAPES,
    carry_out,
    cells,
    every_step,
    mesh_of,
)
from tests.support.long_parameters import long_but
from tests.support.oracle import close, gather, scatter


@pytest.mark.parametrize("mesh", long_but(((mesh,) for mesh in MESHES), 0, 3), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", long_but([DType.FLOAT64, DType.INT32], 1))
def test_every_single_step_keeps_the_tensor(mesh: Shape, shape: Shape, dtype: DType) -> None:
    spec, placement, rng = TensorSpec(shape, dtype), mesh_of(mesh, first=4), np.random.default_rng(0)
    whole = np.asarray(rng.integers(-99, 99, shape), str(dtype))
    steps = list(every_step(spec, mesh, Reduce, owners=[Owner(1)]))
    for source, step in steps:
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        after = carry_out(pieces, spec, source, step, placement)
        assert close(gather([after[r] for r in placement.devices], step.target, mesh), whole), (source, step)
    assert len(steps) >= (4 if shape == () else 8) * len(mesh)


def feasible(spec: TensorSpec, source: NdSbp, target: NdSbp, mesh: Shape, axes: Sequence[int]) -> bool:
    """Whether the ranks of every group along `axes` hold, among themselves, the cells that their targets need."""
    placement = mesh_of(mesh)
    for group in placement.groups(*axes):
        before = [local_box(spec.shape, source, mesh, placement.coords(r)) for r in group]
        after = [local_box(spec.shape, target, mesh, placement.coords(r)) for r in group]
        held = set().union(*map(cells, before))
        if any(not cells(box) <= held for box in after):
            return False
        if any(isinstance(target[axis], Partial) for axis in axes) and set().union(*map(cells, after)) != held:
            return False
    return True


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", [(12, 12), (7, 5), (9,)], ids=str)
def test_steps_are_offered_exactly_where_a_group_can_do_them(mesh: Shape, shape: Shape) -> None:
    """Along one axis wherever that is feasible; along several, the fewest that are, of one kind or without terms."""
    spec = TensorSpec(shape)
    offered = refused = 0
    for source, target in itertools.permutations(layouts_of(spec, mesh), 2):
        changed = [a for a in range(len(mesh)) if source[a] != target[a]]
        step = step_between(source, target)
        if len(changed) == 1 and feasible(spec, source, target, mesh, changed):
            assert step is not None
            assert step.axes == tuple(changed)
        if step is None:
            pairs = {(type(source[a]), type(target[a])) for a in changed}
            assert pairs == {(Broadcast, Split)} or any(Partial in pair for pair in pairs)
            refused += 1
        else:
            assert set(changed) <= set(step.axes)
            assert feasible(spec, source, target, mesh, step.axes), (source, target)
            nested = [axis for axis in step.axes if axis not in changed]
            fewer = [[axis for axis in step.axes if axis != one] for one in nested]
            assert shape != (12, 12) or not any(feasible(spec, source, target, mesh, axes) for axes in fewer)
            offered += 1
    assert offered > 0
    assert (refused > 0) == (len(mesh) > 1)


def test_a_split_below_a_later_split_of_the_same_dim_moves_with_it() -> None:
    both = (Split(0), Split(0))
    beside: tuple[Sbp, ...] = (B, Split(1))
    for other in beside:
        for source, target in ((both, (other, Split(0))), ((other, Split(0)), both)):
            assert step_between(source, target) == BoxingStep(ActKind.ALL_TO_ALL, (0, 1), target)
    assert step_between(both, (P, Split(0))) is None
    assert step_between((P, Split(0)), both) is None
    for other in (*beside, P):
        found = step_between(both, (Split(0), other))
        assert found is not None
        assert found.axes == (1,)


def test_a_rotation_is_one_step_from_any_other() -> None:
    """Of an uneven dim too; below a later split of the same dim, pieces of several axes move."""
    for one, other in itertools.permutations(range(3), 2):
        source, target = (Split(1, one),), (Split(1, other),)
        assert step_between(source, target) == BoxingStep(ActKind.ROTATE, (0,), target)
        task = boxing_task(TensorSpec((4, 7)), source, BoxingStep(ActKind.ROTATE, (0,), target), mesh_of((3,)), 0)
        assert sum(sent_nbytes(ActKind.ROTATE, task, rank, TensorSpec((4, 7))) for rank in range(3)) == 4 * 7 * 4
    both = (Split(0, 1), Split(0))
    assert step_between(both, (Split(0), Split(0))) == BoxingStep(ActKind.ALL_TO_ALL, (0, 1), (Split(0), Split(0)))


@pytest.mark.parametrize("shifts", [(2,), (3, 1), (2, 3)])
def test_steps_of_rotated_splits_are_those_between_each_two(shifts: tuple[int, ...]) -> None:
    """Whatever the shifts are: the tables of all rotations are made of one."""
    mesh = (2, 4)
    special = [(), tuple(Split(dim, shift) for dim in (0, 1) for shift in shifts)]
    layouts = tuple(layouts_of(TensorSpec((8, 8)), mesh, special=special))
    table = steps_among(layouts, mesh)
    found = zip(table.sources.tolist(), table.targets.tolist(), table.steps, strict=True)
    pairs = ((i, j, step_between(layouts[i], layouts[j])) for i, j in itertools.product(range(len(layouts)), repeat=2))
    assert list(found) == [pair for pair in pairs if pair[2] is not None]


def test_layouts_are_all_the_legal_ones_once() -> None:
    for shape, mesh in itertools.product(SHAPES, MESHES):
        for dtype, reduces in itertools.product((DType.FLOAT32, DType.INT32), ((Reduce.SUM,), tuple(Reduce))):
            sbps: list[Sbp] = [B, *map(Partial, reduces), *map(Split, range(4))]
            wanted = {
                nd
                for nd in itertools.product(sbps, repeat=len(mesh))
                if is_legal_layout(shape, nd, mesh) and (dtype.is_float or P not in nd)
            }
            found = layouts_of(TensorSpec(shape, dtype), mesh, reduces=reduces)
            assert set(found) == wanted
            assert len(found) == len(wanted)
            assert set(layouts_of(TensorSpec(shape, dtype), mesh, partial=False)) == {
                nd for nd in wanted if not has_partial(nd)
            }
    assert layouts_of(TensorSpec((4,)), (1, 2))[:2] == [(B, B), (B, Split(0))]


@pytest.mark.parametrize("shape", [(3, 16), (8, 3), (2, 4, 64), (5,)])
@pytest.mark.parametrize("mesh", [(2, 4), (4, 2, 8), (16, 2, 4), (1, 128)])
def test_steps_among_legal_layouts_are_those_between_each_two(shape: Shape, mesh: Shape) -> None:
    """Though they are found among all layouts, for meshes of all sizes; large groups exchange along one axis alone."""
    layouts = tuple(layouts_of(TensorSpec(shape), mesh))
    table = steps_among(layouts, mesh)
    found = zip(table.sources.tolist(), table.targets.tolist(), table.steps, strict=True)
    pairs = ((i, j, step_between(layouts[i], layouts[j])) for i, j in itertools.product(range(len(layouts)), repeat=2))

    def is_priced(step: BoxingStep) -> bool:
        ranks = math.prod(mesh[axis] for axis in step.axes)
        return step.kind is not ActKind.ALL_TO_ALL or len(step.axes) == 1 or ranks <= LARGEST_REGROUP

    assert list(found) == [pair for pair in pairs if pair[2] is not None and is_priced(pair[2])]
