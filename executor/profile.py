"""Profile: what ops and collectives cost on this machine, measured on all ranks at once.

Ops run on the pieces that a training graph would give them under several splits and micro-batches, so that the sizes
measured are the sizes met. All ranks time the same case at the same moment, for they share caches and memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.data.text import VOCABULARY
from executor.runtime.collectives import prepare
from executor.runtime.kernels.base import Kernels
from executor.runtime.transport.base import Lane, Lanes, Transport, wait
from strategy.comm.boxing import BoxingStep, boxing_task, transfer_task
from strategy.cost.cost import op_features, step_features, transfer_features
from strategy.cost.measurement import Features, Measurement, summarise
from strategy.graph.graph import Graph, Op
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.graph.signature import Signature, op_signatures, piece_specs
from strategy.hardware.cluster import Cluster
from strategy.models import Integers, Model
from strategy.passes.training import Training, training_graph
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.sbp.tensor import Box, TensorSpec, box_shape

SIZES_PER_KIND = 6
SAMPLES = 7
WARM_UPS = 2
COLLECTIVE_ROWS = (64, 1024, 16384, 131072)
"""Rows of 16 float32 that collectives are timed on: 4 KiB to 8 MiB."""


@dataclass(frozen=True, slots=True)
class OpCase:
    """One op on pieces of one size."""

    features: Features
    op: Op
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    updates: tuple[TensorSpec, ...]


def op_cases(model: Model, global_batch: int, ranks: int) -> list[OpCase]:
    """Cases of every op kind that training uses, over its range of sizes."""
    found: dict[str, dict[Features, OpCase]] = {}
    for count in (1, 2, 4):
        if global_batch % count:
            continue
        graph = training_graph(model, Training(global_batch, count))
        for op in graph.ops:
            if op.layer in (None, 0):
                for mesh in ((1,), (ranks,)):
                    for signature in op_signatures(graph, op, mesh):
                        case = _case(graph, op, signature, mesh)
                        found.setdefault(op.kind, {}).setdefault(case.features, case)
    return [case for kind in sorted(found) for case in _spread(list(found[kind].values()))]


def _case(graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> OpCase:
    return OpCase(
        op_features(graph, op, signature, mesh),
        op,
        piece_specs(graph.specs(op.inputs), signature.inputs, mesh),
        piece_specs(graph.specs(op.outputs), signature.outputs, mesh),
        piece_specs(graph.specs(op.updates), signature.updates, mesh),
    )


def _spread(cases: Sequence[OpCase]) -> list[OpCase]:
    """A few cases from the smallest to the largest."""
    ordered = sorted(cases, key=lambda case: (case.features.flop, case.features.nbytes))
    picks = sorted({round(i * (len(ordered) - 1) / (SIZES_PER_KIND - 1)) for i in range(SIZES_PER_KIND)})
    return [ordered[pick] for pick in picks]


def time_op(case: OpCase, kernels: Kernels, *, vocabulary: int) -> list[float]:
    """Seconds of one act, several times."""
    definition = op_definition(case.op.kind)
    rng = np.random.default_rng(0)
    arrays = [_random(kernels, spec, rng, vocabulary) for spec in (*case.inputs, *case.outputs, *case.updates)]
    first, second = len(case.inputs), len(case.inputs) + len(case.outputs)
    call = Call(
        xp=kernels.xp,
        attrs=case.op.attrs,
        inputs=tuple(arrays[:first]),
        outputs=tuple(arrays[first:second]),
        updates=tuple(arrays[second:]),
        input_boxes=tuple(_box(spec) for spec in case.inputs),
        output_boxes=tuple(_box(spec) for spec in case.outputs),
        workspace=Workspace(kernels.xp),
        first_of_piece=False,
    )
    return _seconds(lambda: kernels.run(definition, call))


def _box(spec: TensorSpec) -> Box:
    return tuple((0, size) for size in spec.shape)


def _random(kernels: Kernels, spec: TensorSpec, rng: np.random.Generator, vocabulary: int) -> Array:
    """An operand; of a ragged one as many rows as are expected, the same ones for all operands of a shape."""
    xp = kernels.xp
    if spec.ragged is not None:
        rows: Rows = piece_of(xp, spec, _box(spec))
        held = np.random.default_rng(0).permutation(math.prod(spec.shape[:-1]))[: spec.expected_rows]
        cells = np.ravel_multi_index(np.unravel_index(np.sort(held), spec.shape[:-1]), spec.ragged.dims)
        rows.hold(xp.asarray(cells))[...] = xp.asarray(rng.uniform(0.1, 2.0, spec.expected.shape))
        return rows
    if not spec.dtype.is_float:
        return xp.asarray(rng.integers(0, vocabulary, spec.shape).astype(spec.dtype.numpy))
    return xp.asarray(rng.uniform(0.1, 2.0, spec.shape).astype(spec.dtype.numpy))


def _seconds(act: Callable[[], object]) -> list[float]:
    for _ in range(WARM_UPS):
        act()
    seconds = []
    for _ in range(SAMPLES):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return seconds


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """One boxing step over all ranks, or a transfer from each rank of the first half to one of the second."""

    features: Features
    kind: ActKind
    spec: TensorSpec
    tasks: tuple[BoxingTask | TransferTask | None, ...]
    number: int


def collective_cases(cluster: Cluster, ranks: int) -> list[CollectiveCase]:
    """Every kind of communication at several sizes."""
    world = Placement(tuple(range(ranks)), (ranks,), ("all",))
    changes: list[tuple[ActKind, NdSbp, NdSbp]] = [
        (ActKind.ALL_REDUCE, (P,), (B,)),
        (ActKind.REDUCE_SCATTER, (P,), (Split(0),)),
        (ActKind.ALL_GATHER, (Split(0),), (B,)),
        (ActKind.ALL_TO_ALL, (Split(0),), (Split(1),)),
        *([(ActKind.ROTATE, (Split(0),), (Split(0, 1),))] if ranks > 1 else []),
    ]
    cases: list[CollectiveCase] = []
    for rows in COLLECTIVE_ROWS:
        spec = TensorSpec((rows, 16))
        for kind, source, target in changes:
            step = BoxingStep(kind, (0,), target)
            tasks = tuple(boxing_task(spec, source, step, world, rank) for rank in range(ranks))
            features = step_features(cluster, spec, source, step, world, 0)
            cases.append(CollectiveCase(features, kind, spec, tasks, len(cases)))
        if ranks > 1:
            cases.append(_transfer_case(cluster, spec, ranks, len(cases)))
    return cases


def _transfer_case(cluster: Cluster, spec: TensorSpec, ranks: int, number: int) -> CollectiveCase:
    half = ranks // 2
    first = Placement(tuple(range(half)), (half,), ("all",))
    second = Placement(tuple(range(half, 2 * half)), (half,), ("all",))
    task = transfer_task(spec, (B,), first, (B,), second)
    tasks = tuple(task if rank < 2 * half else None for rank in range(ranks))
    return CollectiveCase(transfer_features(cluster, task, spec), ActKind.TRANSFER, spec, tasks, number)


def collective_lanes(cases: Sequence[CollectiveCase], ranks: int) -> Lanes:
    """The lanes that a transport for these cases needs."""
    return {case.number: Lane(tuple(range(ranks)), "profile") for case in cases if case.kind is not ActKind.TRANSFER}


def time_collective(case: CollectiveCase, transport: Transport) -> list[float]:
    """Seconds of one act, several times, from when all ranks are there."""
    task = case.tasks[transport.rank]
    source, target = _ends(case, task, transport.rank)
    seconds = []
    start_act = None
    if task is not None:
        start_act = prepare(case.kind, task, transport.rank, case.number, transport, source, target, Workspace(np))
    for sample in range(WARM_UPS + SAMPLES):
        transport.barrier()
        start = time.perf_counter()
        if start_act is not None:
            for request in start_act():
                wait(request, transport)
        if sample >= WARM_UPS:
            seconds.append(time.perf_counter() - start)
    return seconds


def _ends(
    case: CollectiveCase, task: BoxingTask | TransferTask | None, rank: int
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """The arrays that this rank reads and writes."""
    if isinstance(task, BoxingTask):
        boxes = task.source_boxes[rank], task.target_boxes[rank]
        return np.ones(box_shape(boxes[0]), np.float32), np.ones(box_shape(boxes[1]), np.float32)
    if task is None:
        return None, None
    whole = np.ones(case.spec.shape, np.float32)
    return (whole if rank in task.source_boxes else None), (whole.copy() if rank in task.target_boxes else None)


def profile(
    model: Model,
    global_batch: int,
    cluster: Cluster,
    transport: Transport,
    kernels: Kernels,
    *,
    cases: Sequence[CollectiveCase],
    combine: Callable[[float], float],
    progress: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure ops and collectives on all ranks together.

    `combine` agrees on one figure for all ranks (the mean or the largest); every rank returns the same rows.
    """
    rows = []
    smallest = min((s.below for s in model.batch.values() if isinstance(s, Integers)), default=VOCABULARY)
    for case in op_cases(model, global_batch, transport.size):
        progress(f"{case.features.kind} {case.features.nbytes} bytes")
        transport.barrier()
        rows.append(_row(case.features, time_op(case, kernels, vocabulary=smallest), combine))
    for found in cases if transport.size > 1 else ():
        progress(f"{found.features.kind} {found.features.nbytes} bytes")
        rows.append(_row(found.features, time_collective(found, transport), combine))
    return rows


def _row(features: Features, seconds: Sequence[float], combine: Callable[[float], float]) -> Measurement:
    """What all ranks together say of one size."""
    mine = summarise(features, seconds, "profile")
    return replace(mine, seconds=combine(mine.seconds))
