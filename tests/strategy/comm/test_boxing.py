"""Conversions between layouts: simulated on real pieces, bytes counted, legality tried by brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.base.errors import SbpError
from strategy.comm.boxing import (
    Boxing,
    BoxingStep,
    boxing_task,
    layouts_of,
    meeting_ranks,
    most_sent_nbytes,
    sent_nbytes,
    step_between,
    steps_among,
    transfer_task,
)
from strategy.program.program import ActKind, Message
from strategy.sbp.placement import Placement
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
from strategy.sbp.tensor import Box, DType, Shape, TensorSpec, box_shape, intersect
from tests.support.oracle import box_step, close, gather, scatter, transfer
from tests.support.step_prices import StepPrice, each

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


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.INT32])
def test_every_single_step_keeps_the_tensor(mesh: Shape, shape: Shape, dtype: DType) -> None:
    spec, placement, rng = TensorSpec(shape, dtype), mesh_of(mesh, first=4), np.random.default_rng(0)
    whole = np.asarray(rng.integers(-99, 99, shape), str(dtype))
    steps = list(every_step(spec, mesh, Reduce, owners=[Owner(1)]))
    for source, step in steps:
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        after = carry_out(pieces, spec, source, step, placement)
        assert close(gather([after[r] for r in placement.devices], step.target, mesh), whole), (source, step)
    assert len(steps) >= (4 if shape == () else 8) * len(mesh)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_chain_leads_where_it_should(mesh: Shape, shape: Shape, seed: int) -> None:
    spec, placement, rng = TensorSpec(shape, DType.FLOAT64), mesh_of(mesh), np.random.default_rng(seed)
    price = prices(seed)
    boxing = Boxing(placement, each(price))
    whole = np.asarray(rng.standard_normal(shape))
    for source, target in itertools.product(layouts_of(spec, mesh), repeat=2):
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        here, spent = source, 0.0
        for step in boxing.chain(spec, source, target):
            assert step_between(here, step.target) == step
            spent += price(spec, here, step)
            pieces = carry_out(pieces, spec, here, step, placement)
            here = step.target
        assert here == target
        assert spent == pytest.approx(boxing.seconds(spec, source, target))
        assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole)


def test_chains_are_cheapest_by_another_method() -> None:
    """Bellman-Ford over the same steps."""
    spec, mesh = TensorSpec((12, 12)), (2, 2)
    for seed in range(3):
        boxing = Boxing(mesh_of(mesh), each(prices(seed)))
        layouts = layouts_of(spec, mesh)
        edges = [
            (source, step.target, prices(seed)(spec, source, step))
            for source, step in every_step(spec, mesh, shifts=())
        ]
        for source in layouts:
            best = dict.fromkeys(layouts, math.inf) | {source: 0.0}
            for _ in layouts:
                for here, there, seconds in edges:
                    best[there] = min(best[there], best[here] + seconds)
            assert {target: boxing.seconds(spec, source, target) for target in layouts} == pytest.approx(best)


def test_every_pair_of_layouts_is_joined() -> None:
    for mesh, shape in itertools.product(MESHES, SHAPES):
        spec = TensorSpec(shape)
        boxing = Boxing(mesh_of(mesh), each(one_each))
        for source, target in itertools.product(layouts_of(spec, mesh), repeat=2):
            assert math.isfinite(boxing.seconds(spec, source, target))


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


@pytest.mark.parametrize("mesh", [*MESHES, (2, 3, 2)], ids=str)
@pytest.mark.parametrize("shape", [(12, 12), (7, 5), (13, 6, 4)], ids=str)
def test_the_busiest_rank_is_found(mesh: Shape, shape: Shape) -> None:
    spec, placement, seen = TensorSpec(shape), mesh_of(mesh, first=3), set()
    for source, step in every_step(spec, mesh):
        task = boxing_task(spec, source, step, placement, placement.devices[0])
        wanted = max(sent_nbytes(step.kind, task, rank, spec) for rank in task.group)
        assert most_sent_nbytes(step.kind, task, spec) == wanted, (source, step)
        seen.add(step.kind)
    assert seen == set(TOTALS)


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


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(begin, end) for begin, end in box)))


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


@pytest.mark.parametrize("mesh", [(3,), (3, 2)], ids=str)
def test_rotated_splits_are_joined_with_all_layouts(mesh: Shape) -> None:
    """By the cheapest chain; two rotations of one split by one step of their bytes."""
    spec, placement = TensorSpec((7, 8)), mesh_of(mesh)
    boxing, rng = Boxing(placement, each(most_sent_on(placement))), np.random.default_rng(0)
    whole = rng.standard_normal(spec.shape)
    ordered = layouts_of(spec, mesh)
    turned = [
        nd for nd in layouts_of(spec, mesh, special=[(Split(0, 2),)] + [()] * (len(mesh) - 1)) if nd not in ordered
    ]
    pairs = [
        *itertools.product(turned, ordered),
        *itertools.product(ordered, turned),
        *itertools.product(turned, turned),
    ]
    for source, target in pairs:
        pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
        here = source
        for step in boxing.chain(spec, source, target):
            pieces = carry_out(pieces, spec, here, step, placement)
            here = step.target
        assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole), (source, target)
    assert [step.kind for step in boxing.chain(spec, turned[0], (Split(0, 1), *turned[0][1:]))] == [ActKind.ROTATE]


def test_axes_of_one_kind_are_one_group() -> None:
    kinds: dict[tuple[NdSbp, NdSbp], ActKind] = {
        ((P, P), (B, B)): ActKind.ALL_REDUCE,
        ((P, P), (Split(0), Split(0))): ActKind.REDUCE_SCATTER,
        ((Split(0), Split(0)), (B, B)): ActKind.ALL_GATHER,
        ((Split(0), Split(1)), (Split(1), Split(0))): ActKind.ALL_TO_ALL,
        ((Split(0), B), (B, Split(0))): ActKind.ALL_TO_ALL,
    }
    for (source, target), kind in kinds.items():
        assert step_between(source, target) == BoxingStep(kind, (0, 1), target)
    spec, placement = TensorSpec((8, 8)), mesh_of((2, 4))
    chain = Boxing(placement, each(most_sent_on(placement))).chain(spec, (P, P), (B, B))
    assert [step.axes for step in chain] == [(0, 1)]


def most_sent_on(placement: Placement) -> StepPrice:
    """Bytes of the busiest rank, and one for the step."""

    def price(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        tasks = (boxing_task(spec, source, step, placement, rank) for rank in placement.devices)
        pairs = zip(placement.devices, tasks, strict=True)
        return 1.0 + max(sent_nbytes(step.kind, task, rank, spec) for rank, task in pairs)

    return price


def test_a_regrouped_mesh_sends_only_what_ranks_lack() -> None:
    """From [2, 4] cut as (S(0), B) to (B, S(0)): what stays in place stays."""
    spec, placement = TensorSpec((8, 3)), mesh_of((2, 4))
    source, target = (Split(0), B), (B, Split(0))
    (step,) = Boxing(placement, each(most_sent_on(placement))).chain(spec, source, target)
    task = boxing_task(spec, source, step, placement, 0)
    lacking = 0
    for before, after in zip(task.source_boxes, task.target_boxes, strict=True):
        lacking += len(cells(after) - cells(before)) * 4
    assert lacking == 4 * 3 * 2 * 4
    assert sum(sent_nbytes(step.kind, task, rank, spec) for rank in task.group) == lacking


def test_nested_terms_of_another_reduction_are_combined_first() -> None:
    largest = Partial(Reduce.MAX)
    assert step_between((largest, P), (B, P)) is None
    assert step_between((largest, P), (B, B)) is None
    assert step_between((largest, P), (largest, B)) is not None
    assert step_between((P, P), (largest, P)) is None
    spec, boxing = TensorSpec((6, 6)), Boxing(mesh_of((2, 2)), each(one_each))
    chain = boxing.chain(spec, (largest, P), (B, B))
    assert [step.axes for step in chain] == [(1,), (0,)]
    assert [step.kind for step in boxing.chain(spec, (largest, B), (P, B))] == [ActKind.ALL_REDUCE, ActKind.SLICE]


def test_tables_know_maxima_only_where_they_are_asked_for() -> None:
    spec, boxing = TensorSpec((6, 6)), Boxing(mesh_of((2, 2)), each(one_each))
    boxing.seconds(spec, (P, B), (B, B))
    (small,) = boxing.tables[spec].values()
    assert not any(Partial(Reduce.MAX) in layout.nd_sbp for layout in small.index)
    boxing.seconds(spec, (Partial(Reduce.MAX), B), (B, B))
    assert len(boxing.tables[spec]) == 2
    with pytest.raises(SbpError, match="not a legal layout"):
        boxing.seconds(TensorSpec((6, 6), DType.INT32), (P, B), (B, B))


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


PLACEMENTS = (
    mesh_of((2,)),
    mesh_of((2,), first=2),
    mesh_of((3,)),
    mesh_of((3,), first=1),
    mesh_of((2, 2)),
    mesh_of((2, 2), first=4),
    Placement((3, 1), (2,), ("data",)),
    Placement((5, 0, 3, 2, 7, 1), (3, 2), ("data", "tensor")),
    mesh_of((1,), first=1),
)
"""Disjoint, overlapping, contained, in another order."""


@pytest.mark.parametrize("shape", [(12, 12), (7, 5), ()], ids=str)
def test_a_transfer_gives_every_rank_its_box_once(shape: Shape) -> None:
    spec, rng, count = TensorSpec(shape, DType.FLOAT64), np.random.default_rng(0), 0
    whole = np.asarray(rng.standard_normal(shape))
    for here, there in itertools.product(PLACEMENTS, repeat=2):
        for source in layouts_of(spec, here.mesh, partial=False):
            pieces = dict(zip(here.devices, scatter(whole, source, here.mesh, rng), strict=True))
            for target in layouts_of(spec, there.mesh, partial=False):
                task = transfer_task(spec, source, here, target, there)
                arrived = transfer(task, pieces)
                assert set(arrived) == set(there.devices)
                for message in task.messages:
                    held = task.source_boxes[message.source]
                    assert intersect(held, message.box) == message.box
                for rank, piece in arrived.items():
                    wanted = local_box(shape, target, there.mesh, there.coords(rank))
                    assert piece.shape == box_shape(wanted)
                assert close(gather([arrived[r] for r in there.devices], target, there.mesh), whole)
                count += 1
    assert count >= len(PLACEMENTS) ** 2


@pytest.mark.parametrize("shape", [(12, 12), (7, 5), ()], ids=str)
def test_a_transfer_sends_nothing_that_its_receiver_holds(shape: Shape) -> None:
    spec = TensorSpec(shape)
    for here, there in itertools.product(PLACEMENTS, repeat=2):
        for source in layouts_of(spec, here.mesh, partial=False):
            for target in layouts_of(spec, there.mesh, partial=False):
                task = transfer_task(spec, source, here, target, there)
                lacking = 0
                for rank, wanted in task.target_boxes.items():
                    own = task.source_boxes.get(rank)
                    kept = intersect(own, wanted) if own is not None else None
                    lacking += math.prod(box_shape(wanted)) - (math.prod(box_shape(kept)) if kept is not None else 0)
                sent = sum(sent_nbytes(ActKind.TRANSFER, task, rank, spec) for rank in here.devices)
                assert sent == 4 * lacking


def test_replicas_share_the_sending() -> None:
    task = transfer_task(TensorSpec((8,)), (B,), mesh_of((4,)), (B,), mesh_of((4,), first=4))
    assert sorted(m.source for m in task.messages) == [0, 1, 2, 3]


def test_partial_tensors_do_not_travel() -> None:
    for source, target in (((P,), (B,)), ((B,), (P,))):
        with pytest.raises(SbpError, match="partial tensors do not travel"):
            transfer_task(TensorSpec((4,)), source, mesh_of((2,)), target, mesh_of((2,), first=2))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_meeting_ranks_are_the_connected_components(pairs: list[tuple[int, int]]) -> None:
    reach = {rank: {rank} for pair in pairs for rank in pair}
    for _ in reach:
        for one, other in pairs:
            reach[one] |= reach[other]
            reach[other] |= reach[one]
    wanted = sorted({tuple(sorted(group)) for group in reach.values()})
    assert meeting_ranks([Message(a, b, ()) for a, b in pairs]) == wanted


@settings(deadline=None)
@given(data=st.data())
def test_chains_hold_on_random_meshes_and_shapes(data: st.DataObject) -> None:
    mesh = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), max_size=2)))
    spec, placement, rng = TensorSpec(shape, DType.FLOAT64), mesh_of(mesh), np.random.default_rng(0)
    layouts = layouts_of(spec, mesh)
    source, target = data.draw(st.sampled_from(layouts)), data.draw(st.sampled_from(layouts))
    whole = np.asarray(rng.standard_normal(shape))
    pieces = dict(zip(placement.devices, scatter(whole, source, mesh, rng), strict=True))
    here = source
    for step in Boxing(placement, each(one_each)).chain(spec, source, target):
        pieces = carry_out(pieces, spec, here, step, placement)
        here = step.target
    assert close(gather([pieces[r] for r in placement.devices], target, mesh), whole)


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


def test_tables_know_owners_only_where_they_are_asked_for() -> None:
    boxing = Boxing(mesh_of((2, 2)), each(one_each))
    boxing.chain(TensorSpec((4, 4)), (B, B), (Split(0), B))
    assert all(not owned for _, owned in boxing.tables[TensorSpec((4, 4))])
    chain = boxing.chain(TensorSpec((4, 4)), (P, Split(1)), (Owner(1), B))
    assert len(chain) == 2
    with pytest.raises(SbpError, match="not a legal layout"):
        boxing.chain(TensorSpec((4, 4)), (B, B), (Owner(2), B))
