"""Features of communication: what is sent, to how many, over which level of the network."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from strategy.comm.boxing import BoxingStep
from strategy.comm.busiest_rank import NodeGroups, most_sent, most_sent_in_parts
from strategy.comm.hierarchical import PARTS, box_size, span_of
from strategy.comm.rank_parts import transfer_task
from strategy.comm.transfer import most_transferred
from strategy.cost.measurement import Features
from strategy.graph.signature import piece_specs
from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind, TransferTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, has_partial
from strategy.sbp.tensor import Shape, TensorSpec


def step_features(
    cluster: Cluster, spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement
) -> Features:
    """Features of a boxing step on one level, in the group that holds most."""
    if step.kind is ActKind.SLICE:
        local = [largest_nbytes(spec, layout, placement.mesh) for layout in (source, step.target)]
        return replace(step_act(cluster, step, placement), nbytes=min(local) + local[1])
    return replace(step_act(cluster, step, placement), nbytes=most_sent(spec, source, step, placement.mesh))


def step_act(cluster: Cluster, step: BoxingStep, placement: Placement) -> Features:
    """What a boxing step is on one level, but for its bytes."""
    groups = cluster.groups_of(placement.devices)
    if step.kind is ActKind.SLICE:
        return Features(step.kind, 0, 0, groups=groups)
    hops = 1 if step.kind is ActKind.ROTATE else math.prod(placement.mesh[axis] for axis in step.axes) - 1
    span = span_of(cluster, placement, step.axes)
    # Where a mesh is no whole number of nodes, that of another stage lies otherwise: bounds take one for all.
    is_whole = len(placement.devices) % cluster.devices_per_node == 0
    near = span.per_node - 1 if is_whole and _sends_to_all(cluster, step.kind) and _is_even(step) else 0
    return Features(step.kind, 0, 0, hops, span.level, groups=groups, near=near)


def _sends_to_all(cluster: Cluster, kind: ActKind) -> bool:
    """Whether ranks send each other what they have for each other: through memory all collectives do; NCCL has rings.

    All but a rotation, which sends to one.
    """
    if cluster.device.backend == "numpy":
        return kind in (ActKind.ALL_TO_ALL, *PARTS)
    return kind is ActKind.ALL_TO_ALL


def _is_even(step: BoxingStep) -> bool:
    """Whether as much goes to every other rank: an all-to-all along several axes may have most of it for one."""
    return step.kind is not ActKind.ALL_TO_ALL or len(step.axes) == 1


def collectives(cluster: Cluster, hops: int, level: str) -> list[Features]:
    """All kinds of communication with so many other ranks on a level, however these may lie there; of no bytes."""
    found = [Features(kind, 0, 0, hops, level) for kind in ActKind if kind.is_communication]
    per_node = range(2, cluster.devices_per_node + 1) if level == "inter" else ()
    return found + [
        replace(one, near=each - 1)
        for one in found
        for each in per_node
        if _sends_to_all(cluster, ActKind(one.kind)) and (hops + 1) % each == 0 and hops >= each
    ]


@lru_cache(maxsize=4096)
def largest_nbytes(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> int:
    """Bytes of the largest piece of a layout; expected ones where the tensor is ragged."""
    return piece_specs([spec], [layout], mesh)[0].expected.nbytes


def two_level_features(spec: TensorSpec, source: NdSbp, step: BoxingStep, mesh: Shape, levels: NodeGroups) -> Features:
    """Features of a collective that goes inside the nodes of its group and between them, by its busiest rank."""
    most = most_sent_in_parts(spec, source, step, mesh, levels)
    parts = tuple(
        Features(kind, 0, nbytes, levels.hops(level), level)
        for (kind, level), nbytes in zip(PARTS[step.kind], most, strict=True)
    )
    return Features(step.kind, 0, sum(most), sum(part.hops for part in parts), "inter", parts)


def transfer_features(cluster: Cluster, task: TransferTask, spec: TensorSpec) -> Features:
    """Features of a transfer between placements: its busiest sender's bytes."""
    ranks: set[int] = set()
    sent: dict[int, int] = {}
    for message in task.messages:
        ranks.update((message.source, message.target))
        if message.source != message.target:
            sent[message.source] = sent.get(message.source, 0) + spec.sent_nbytes(box_size(message.box))
    level, groups = cluster.level(tuple(ranks)), cluster.groups_of(ranks)
    return Features(ActKind.TRANSFER, 0, max(sent.values(), default=0), 1, level, groups=groups)


def crossing_features(
    cluster: Cluster, spec: TensorSpec, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
) -> Features:
    """`transfer_features` of a tensor that moves between placements, found without listing its messages."""
    if spec.ragged is not None or has_partial(source) or has_partial(target):
        return transfer_features(cluster, transfer_task(spec, source, sender, target, receiver), spec)
    size, ranks = most_transferred(spec, source, sender, target, receiver)
    groups = cluster.groups_of(ranks)
    return Features(ActKind.TRANSFER, 0, spec.sent_nbytes(size), 1, cluster.level(ranks), groups=groups)
