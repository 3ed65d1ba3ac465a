"""What a step sends of an even tensor, counted on another: always what it sends of the tensor itself."""

from __future__ import annotations

import itertools

import pytest

from strategy.comm.boxing import layouts_of, step_between, steps_among
from strategy.comm.busiest_rank import StepSizes, busiest_position, most_sent, pieces_by_rank
from strategy.comm.hierarchical import box_size
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import most_sent_nbytes
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Owner, Split, local_boxes
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.support.boxing_steps import every_step, mesh_of


@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        ((8, 24, 16), (2, 4)),  # even
        ((8, 12, 6), (2, 4)),  # uneven where both axes split one of the later dims
        ((6, 35), (3, 2)),
        ((9,), (2, 2)),
        ((), (2, 2)),
        ((12, 8), (2, 3, 2)),
    ],
)
def test_a_share_is_what_would_be_counted(shape: Shape, mesh: Shape) -> None:
    ranks = 1
    for parts in mesh:
        ranks *= parts
    placement = Placement(tuple(range(5, 5 + ranks)), mesh, tuple("abc"[: len(mesh)]))
    spec = TensorSpec(shape, DType.FLOAT64)
    special = [[Owner(0)], *([[]] * (len(mesh) - 1))]
    layouts = layouts_of(spec, mesh, special=special)
    steps = 0
    for source, target in itertools.permutations(layouts, 2):
        step = step_between(source, target)
        if step is None or step.kind == "slice":
            continue
        rank = placement.devices[0]
        counted = most_sent_nbytes(step.kind, boxing_task(spec, source, step, placement, rank), spec)
        assert most_sent(spec, source, step, mesh) == counted, (source, step)
        steps += 1
    assert steps >= 4


@pytest.mark.parametrize(("shape", "mesh"), [((12, 8), (2, 2)), ((7, 5), (3,)), ((7, 5), (2, 3))])
def test_rotations_and_owners_are_counted_in_the_group_that_holds_most(shape: Shape, mesh: Shape) -> None:
    """Of a split that is rotated along another axis, the first group is, which may hold a row less than another."""
    spec, placement = TensorSpec(shape), mesh_of(mesh, first=3)
    seen = set()
    for source, step in every_step(spec, mesh, owners=(Owner(1),)):
        if step.kind is ActKind.SLICE:
            continue
        rank = placement.devices[busiest_position(source, step, mesh)]
        task = boxing_task(spec, source, step, placement, rank)
        assert most_sent(spec, source, step, mesh) == most_sent_nbytes(step.kind, task, spec), (source, step)
        kept = (sbp for axis, sbp in enumerate(source) if axis not in step.axes)
        if not any(isinstance(sbp, Split) and sbp.shift for sbp in kept):
            groups = (boxing_task(spec, source, step, placement, group[0]) for group in placement.groups(*step.axes))
            assert most_sent(spec, source, step, mesh) == max(most_sent_nbytes(step.kind, one, spec) for one in groups)
        seen.add(step.kind)
    assert seen >= {ActKind.ROTATE, ActKind.ALL_TO_ALL, ActKind.ALL_REDUCE, ActKind.REDUCE_SCATTER, ActKind.ALL_GATHER}


@pytest.mark.parametrize(("shape", "mesh"), [((12, 8), (2, 2)), ((7, 5), (3,)), ((9, 7, 2), (2, 3)), ((), (2,))])
def test_the_largest_piece_is_that_of_some_rank(shape: Shape, mesh: Shape) -> None:
    layouts = tuple(layouts_of(TensorSpec(shape), mesh))
    found = StepSizes(steps_among(layouts, mesh), TensorSpec(shape)).largest_pieces().tolist()
    assert found == [max(map(box_size, local_boxes(shape, layout, mesh))) for layout in layouts]


def test_steps_of_a_table_send_what_each_sends_by_itself() -> None:
    """And slices nothing."""
    spec, mesh = TensorSpec((7, 5)), (2, 3)
    steps = steps_among(tuple(layouts_of(spec, mesh)), mesh)
    assert {step.kind for step in steps.steps} > {ActKind.SLICE, ActKind.ALL_TO_ALL}
    sent = StepSizes(steps, spec).sent().tolist()
    for size, step, source in zip(sent, steps.steps, steps.sources.tolist(), strict=True):
        assert spec.sent_nbytes(size) == most_sent(spec, steps.layouts[source], step, mesh)
        assert (size == 0) == (step.kind is ActKind.SLICE)


@pytest.mark.parametrize("mesh", [(2, 2, 16), (2, 4, 8), (4, 4, 4)])
def test_a_tensor_of_trillions_of_elements_sends_as_much_more_as_it_is_larger(mesh: Shape) -> None:
    """What 512 samples hand to 256 experts: products overflowed, prices were negative, and chains never ended."""
    small, large = TensorSpec((64, 64, 64, 64)), TensorSpec((256, 512, 4096, 7168))
    steps = steps_among(tuple(layouts_of(small, mesh)), mesh)
    times = 256 * 512 * 4096 * 7168 // 64**4
    assert (StepSizes(steps, large).sent() == times * StepSizes(steps, small).sent()).all()


def test_where_pieces_begin_and_how_long_they_are() -> None:
    """Of rotated splits and owners, too, and of tensors with more elements than 64 bits count."""
    for shape, mesh in (((7, 5), (2, 3)), ((1 << 40, 1 << 30), (3, 2))):
        for layout in layouts_of(TensorSpec(shape), mesh, special=[[Owner(1)], [Split(0, 2), Owner(0)]]):
            begins, lengths = pieces_by_rank(shape, layout, mesh)
            ends = begins + lengths
            pieces = zip(begins.tolist(), ends.tolist(), strict=True)
            assert [tuple(zip(*piece, strict=True)) for piece in pieces] == list(local_boxes(shape, layout, mesh))
