"""Ragged tensors under every boxing step and between placements: the rows that there are arrive, and no others go."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.op_validation.pieces import cut, join
from executor.runtime.collectives import prepare
from executor.runtime.transport.base import Transport, wait
from strategy.base.errors import InternalError
from strategy.comm.boxing import BoxingStep, layouts_of, step_between
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Role, Value
from strategy.graph.ops.base import Workspace
from strategy.graph.signature import op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import assign_stages
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.sbp import B, NdSbp, Split, local_box, local_boxes
from strategy.sbp.tensor import DType, Ragged, Rate, Shape, TensorSpec
from tests.campaigns import layouts
from tests.executor.random_boxing import on_threads
from tests.support.small_plans import cluster
from tests.support.whole_graphs import Operand, WholeCase

Array = npt.NDArray[Any]
DIMS = (5, 4, 4)
SPEC = TensorSpec((*DIMS, 5), DType.FLOAT64, Ragged(2, DIMS))
COUNT, PLACE = 8, 8


def routed(rng: np.random.Generator, demand: str) -> Array:
    """A tensor written out: of every token the rows of two experts, at most."""
    out = np.zeros(SPEC.shape)
    for g, s in itertools.product(range(DIMS[1]), range(DIMS[2])):
        chosen = {"any": rng.choice(DIMS[0], 2, replace=False)[: rng.integers(1, 3)], "one": [3], "none": []}[demand]
        for expert in chosen:
            out[expert, g, s] = rng.uniform(0.5, 1.5, SPEC.shape[-1])
    return out


def line(ranks: int, first: int = 0) -> Placement:
    return Placement(tuple(range(first, first + ranks)), (ranks,), ("all",))


def rows_of(piece: Array, box: tuple[tuple[int, int], ...]) -> Rows:
    rows: Rows = piece_of(np, SPEC, box)
    rows.hold_dense(piece)
    return rows


def carry_out(
    kind: ActKind,
    tasks: dict[int, BoxingTask | TransferTask],
    sources: dict[int, Rows],
    boxes: dict[int, tuple[tuple[int, int], ...]],
    ranks: int,
) -> tuple[dict[int, Array], int]:
    """What every rank holds then, written out, and the bytes that all sent."""
    after: dict[int, Array] = {}

    def play(transport: Transport) -> None:
        rank = transport.rank
        if rank in tasks:
            target = piece_of(np, SPEC, boxes[rank]) if rank in boxes else None
            act = prepare(kind, tasks[rank], rank, 0, transport, sources.get(rank), target, Workspace(np))
            for request in act():
                wait(request, transport)
            if target is not None:
                after[rank] = target.dense()

    transports = on_threads(ranks, play)
    return after, sum(sum(t.bytes_sent.values()) for t in transports)


def every_step(mesh: Shape) -> list[tuple[NdSbp, BoxingStep]]:
    pairs = itertools.permutations(layouts_of(SPEC, mesh), 2)
    return [(source, step) for source, target in pairs if (step := step_between(source, target)) is not None]


@pytest.mark.parametrize("demand", ["any", "one", "none"])
@pytest.mark.parametrize("mesh", [(2,), (3,), (4,)])
def test_every_step_along_an_axis(mesh: Shape, demand: str) -> None:
    check_steps(mesh, every_step(mesh), demand)


def test_steps_on_two_axes() -> None:
    mesh = (2, 2)
    steps = every_step(mesh)
    chosen = np.random.default_rng(1).choice(len(steps), 60, replace=False)
    check_steps(mesh, [steps[i] for i in sorted(chosen.tolist())], "any")


def test_rotated_pieces() -> None:
    mesh = (3,)
    splits: list[NdSbp] = [(Split(0, shift),) for shift in range(3)]
    pairs = itertools.permutations(splits, 2)
    steps = [(source, step) for source, target in pairs if (step := step_between(source, target)) is not None]
    assert {step.kind for _, step in steps} == {ActKind.ROTATE}
    check_steps(mesh, steps, "any")


def check_steps(mesh: Shape, steps: list[tuple[NdSbp, BoxingStep]], demand: str) -> None:
    rng = np.random.default_rng(len(steps))
    placement = Placement(tuple(range(int(np.prod(mesh)))), mesh, ("a", "b")[: len(mesh)])
    for source, step in steps:
        whole = routed(rng, demand)
        before, after = (local_boxes(SPEC.shape, nd, mesh) for nd in (source, step.target))
        pieces = cut(whole, source, mesh, rng, ragged=True)
        tasks = {rank: boxing_task(SPEC, source, step, placement, rank) for rank in placement.devices}
        sources = {rank: rows_of(piece, box) for rank, (piece, box) in enumerate(zip(pieces, before, strict=True))}
        found, _ = carry_out(step.kind, dict(tasks), sources, dict(enumerate(after)), len(pieces))
        joined = join([found[rank] for rank in placement.devices], step.target, mesh)
        np.testing.assert_allclose(joined, whole, rtol=1e-12, atol=1e-12, err_msg=f"{source} {step}")


@pytest.mark.parametrize("demand", ["any", "one", "none"])
@pytest.mark.parametrize("there_and_back", [(Split(1), Split(0)), (Split(0), Split(2))])
def test_an_all_to_all_sends_the_rows_that_move(there_and_back: tuple[Split, Split], demand: str) -> None:
    """Worked out row by row: who has it before, and who after."""
    ranks, (here, there) = 3, there_and_back
    whole = routed(np.random.default_rng(2), demand)
    before, after = (local_boxes(SPEC.shape, (sbp,), (ranks,)) for sbp in (here, there))
    step = step_between((here,), (there,))
    assert step is not None
    tasks = {rank: boxing_task(SPEC, (here,), step, line(ranks), rank) for rank in range(ranks)}
    sources = {r: rows_of(whole[tuple(slice(*c) for c in box)], box) for r, box in enumerate(before)}
    _, sent = carry_out(step.kind, dict(tasks), sources, dict(enumerate(after)), ranks)
    moving = 0
    for cell in zip(*np.nonzero(whole[..., 0]), strict=True):
        holders = [
            next(r for r, box in enumerate(boxes) if all(b <= at < e for at, (b, e) in zip(cell, box, strict=False)))
            for boxes in (before, after)
        ]
        moving += holders[0] != holders[1]
    assert sent == ranks * (ranks - 1) * COUNT + moving * (PLACE + SPEC.shape[-1] * 8)
    assert sent <= ranks * (ranks - 1) * COUNT + 2 * 16 * (PLACE + SPEC.shape[-1] * 8)


@pytest.mark.parametrize("first", [0, 1, 3], ids=["same ranks", "overlapping", "disjoint"])
@pytest.mark.parametrize("target", [(B,), *((Split(dim),) for dim in range(4))], ids=str)
def test_between_placements(first: int, target: NdSbp) -> None:
    rng = np.random.default_rng(first)
    here, there = line(3), line(2, first)
    for source in layouts_of(SPEC, here.mesh, partial=False):
        whole = routed(rng, "any")
        task = transfer_task(SPEC, source, here, target, there)
        boxes = {r: local_box(SPEC.shape, target, there.mesh, there.coords(r)) for r in there.devices}
        before = zip(here.devices, local_boxes(SPEC.shape, source, here.mesh), strict=True)
        sources = {r: rows_of(whole[tuple(slice(*c) for c in box)], box) for r, box in before}
        tasks = dict.fromkeys({*here.devices, *there.devices}, task)
        found, _ = carry_out(ActKind.TRANSFER, dict(tasks), sources, boxes, 5)
        np.testing.assert_array_equal(join([found[r] for r in there.devices], target, there.mesh), whole)


def test_more_rows_than_there_is_room_for_are_refused() -> None:
    """One token that chose all five experts, where a token may choose two."""
    whole = np.ones(SPEC.shape)
    step = step_between((Split(1),), (Split(0),))
    assert step is not None
    wide = TensorSpec(SPEC.shape, SPEC.dtype, Ragged(5, DIMS))
    tasks = {rank: boxing_task(SPEC, (Split(1),), step, line(2), rank) for rank in range(2)}
    sources: dict[int, Rows] = {}
    for rank, box in enumerate(local_boxes(SPEC.shape, (Split(1),), (2,))):
        sources[rank] = piece_of(np, wide, box)
        sources[rank].hold_dense(whole[tuple(slice(*c) for c in box)])
    narrow = TensorSpec(SPEC.shape, SPEC.dtype, Ragged(1, DIMS))
    targets = [piece_of(np, narrow, box) for box in local_boxes(SPEC.shape, (Split(0),), (2,))]

    def play(transport: Transport) -> None:
        rank = transport.rank
        act = prepare(step.kind, tasks[rank], rank, 0, transport, sources[rank], targets[rank], Workspace(np))
        for request in act():
            wait(request, transport)

    with pytest.raises(InternalError, match="24 rows in a piece that holds 16"):
        on_threads(2, play)


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("choices", [1, 2])
@pytest.mark.parametrize("experts", [(0, 5), (4, 5), (-1, 0)], ids=["any", "the last", "none"])
def test_experts_on_ranks_of_their_own(ranks: int, choices: int, experts: tuple[int, int]) -> None:
    """Tokens by group, experts by rank: to the experts and back, wherever the tokens want to go."""
    builder, operands = GraphBuilder(), {}
    specs = {
        "x": TensorSpec((4, 3, 6), DType.FLOAT64),
        "chosen": TensorSpec((4, 3, choices), DType.INT32),
        "weights": TensorSpec((4, 3, choices), DType.FLOAT64),
        "w": TensorSpec((5, 6, 7), DType.FLOAT64),
    }
    for position, (name, spec) in enumerate(specs.items()):
        builder.declare(Value(name, spec, Rate.MICRO_BATCH, Role.INPUT))
        operands[name] = Operand(spec, experts if name == "chosen" else None, position)
    builder.add("rows", "dropless_dispatch", ("x", "chosen"), attrs={"experts": 5, "imbalance": 1.0, "room": 0.0})
    builder.add("up", "grouped_matmul", ("rows", "w"), attrs={"transpose": 0})
    builder.add("act", "gelu", ("up",))
    builder.add("y", "dropless_combine", ("act", "chosen", "weights"))
    graph, placement, cost = builder.build(), line(ranks), CostModel(cluster(ranks), {})
    wanted = {
        "rows": (Split(0), Split(1)),
        "up": (Split(0), Split(0)),
        "act": (Split(0), Split(0)),
        "y": (Split(1), Split(0)),
    }
    signatures = {
        op.name: next(
            s for s in op_signatures(graph, op, (ranks,)) if (s.inputs[0][0], s.outputs[0][0]) == wanted[op.name]
        )
        for op in graph.ops
    }
    layout = lay_out(graph, assign_stages(graph, (placement,)), signatures, Converter(cost, (placement,)))
    moved = [step.kind for conversion in layout.conversions for step in conversion.steps]
    assert moved == [ActKind.ALL_TO_ALL] * 2
    case = WholeCase(0, graph, (), {}, operands, layout, Pipeline(2), cost, DType.FLOAT64)
    assert list(layouts.check(case)) == []
