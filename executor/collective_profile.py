"""Collectives of a profile: what communication takes on each level of the network, measured in groups that go at once.

On one node all ranks are one group. On several, ranks of a node are the groups of the level inside, and ranks at one
place of all nodes those of the level between: they share their node's link, as they do when a training goes on two
levels (see `strategy.comm.hierarchical`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.runtime.collectives import prepare
from executor.runtime.transport.base import Group, Lane, Lanes, Transport, wait
from strategy.comm.boxing import BoxingStep
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.cost.communication import step_features, transfer_features
from strategy.cost.measurement import Features
from strategy.graph.ops.base import Workspace
from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.sbp.tensor import TensorSpec, box_shape

SAMPLES = 7
WARM_UPS = 2
COLLECTIVE_ROWS = (64, 1024, 16384, 131072)
"""Rows of 16 float32 that collectives are timed on: 4 KiB to 8 MiB; before these a row of each rank, for latency."""

_CHANGES: tuple[tuple[ActKind, NdSbp, NdSbp], ...] = (
    (ActKind.ALL_REDUCE, (P,), (B,)),
    (ActKind.REDUCE_SCATTER, (P,), (Split(0),)),
    (ActKind.ALL_GATHER, (Split(0),), (B,)),
    (ActKind.ALL_TO_ALL, (Split(0),), (Split(1),)),
    (ActKind.ROTATE, (Split(0),), (Split(0, 1),)),
)


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A rank's part of a sample: what it does, in which group, and the number of the rendezvous."""

    task: BoxingTask | TransferTask
    group: Group
    number: int


@dataclass(frozen=True, slots=True)
class CollectiveSample:
    """One boxing step in every group at once, or a transfer from each rank of a first half to one of a second."""

    features: Features
    kind: ActKind
    spec: TensorSpec
    tasks: Mapping[int, GroupTask]
    """By rank; a rank that is in none waits."""


def node_and_peer_groups(cluster: Cluster) -> list[tuple[Group, ...]]:
    """The groups of each level that has any of two ranks, inside nodes first."""
    places = range(cluster.devices_per_node)
    nodes = [tuple(cluster.devices_per_node * node + place for place in places) for node in range(cluster.nodes)]
    levels = [tuple(nodes), tuple(zip(*nodes, strict=True))]
    return [groups for groups in levels if len(groups[0]) > 1]


def collective_samples(cluster: Cluster) -> list[CollectiveSample]:
    """Every kind of communication on every level at several sizes."""
    numbers = itertools.count()
    samples = []
    for groups in node_and_peer_groups(cluster):
        for rows in (len(groups[0]), *COLLECTIVE_ROWS):
            spec = TensorSpec((rows, 16))
            samples += [_step_sample(cluster, spec, change, groups, numbers) for change in _CHANGES]
            samples.append(_transfer_sample(cluster, spec, groups, numbers))
    return samples


def _step_sample(
    cluster: Cluster,
    spec: TensorSpec,
    change: tuple[ActKind, NdSbp, NdSbp],
    groups: Sequence[Group],
    numbers: Iterator[int],
) -> CollectiveSample:
    kind, source, target = change
    step, tasks = BoxingStep(kind, (0,), target), {}
    for group in groups:
        placement, number = Placement(group, (len(group),), ("all",)), next(numbers)
        for rank in group:
            tasks[rank] = GroupTask(boxing_task(spec, source, step, placement, rank), group, number)
    features = step_features(cluster, spec, source, step, Placement(groups[0], (len(groups[0]),), ("all",)))
    return CollectiveSample(features, kind, spec, tasks)


def _transfer_sample(
    cluster: Cluster, spec: TensorSpec, groups: Sequence[Group], numbers: Iterator[int]
) -> CollectiveSample:
    """From the first half of each group to the second."""
    tasks: dict[int, GroupTask] = {}
    features: Features | None = None
    for group in groups:
        half, number = len(group) // 2, next(numbers)
        first, second = (Placement(part, (half,), ("all",)) for part in (group[:half], group[half : 2 * half]))
        task = transfer_task(spec, (B,), first, (B,), second)
        features = features or transfer_features(cluster, task, spec)
        tasks |= {rank: GroupTask(task, group, number) for rank in group[: 2 * half]}
    assert features is not None
    return CollectiveSample(features, ActKind.TRANSFER, spec, tasks)


def collective_lanes(samples: Sequence[CollectiveSample]) -> Lanes:
    """The lanes that a transport for these samples needs."""
    return {
        part.number: Lane(part.group, "profile")
        for sample in samples
        if sample.kind is not ActKind.TRANSFER
        for part in sample.tasks.values()
    }


def time_collective(sample: CollectiveSample, transport: Transport) -> list[float]:
    """Seconds of one act, several times, from when all ranks are there."""
    part = sample.tasks.get(transport.rank)
    start_act = None
    if part is not None:
        source, target = _ends(sample.spec, part, transport.rank)
        start_act = prepare(
            sample.kind, part.task, transport.rank, part.number, transport, source, target, Workspace(np)
        )
    seconds = []
    for repeat in range(WARM_UPS + SAMPLES):
        transport.barrier()
        start = time.perf_counter()
        if start_act is not None:
            for request in start_act():
                wait(request, transport)
        if repeat >= WARM_UPS:
            seconds.append(time.perf_counter() - start)
    return seconds


def _ends(spec: TensorSpec, part: GroupTask, rank: int) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """The arrays that this rank reads and writes."""
    task = part.task
    if isinstance(task, BoxingTask):
        me = part.group.index(rank)
        boxes = task.source_boxes[me], task.target_boxes[me]
        return np.ones(box_shape(boxes[0]), np.float32), np.ones(box_shape(boxes[1]), np.float32)
    whole = np.ones(spec.shape, np.float32)
    return (whole if rank in task.source_boxes else None), (whole.copy() if rank in task.target_boxes else None)
