"""Prices of steps one by one: from any function, and as they were before arrays, counted piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from strategy.comm.boxing import BoxingStep, Floats, Price, StepTable
from strategy.comm.hierarchical import PARTS, nodes_of, part_sizes
from strategy.comm.rank_parts import boxing_task
from strategy.comm.sent_bytes import most_sent_nbytes
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.graph.signature import piece_specs
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, largest_position
from strategy.sbp.tensor import TensorSpec

StepPrice = Callable[[TensorSpec, NdSbp, BoxingStep], float]
"""(spec, source, step) -> seconds."""


def each(price: StepPrice) -> Price:
    """The price of all steps, each asked by itself."""

    def prices(spec: TensorSpec, steps: StepTable) -> Floats:
        pairs = zip(steps.sources.tolist(), steps.steps, strict=True)
        return np.array([price(spec, steps.layouts[source], step) for source, step in pairs])

    return prices


def counted_features(
    cost: CostModel, spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement
) -> Features:
    """What `CostModel.step_features` says, from the pieces that every rank of the group sends."""
    mesh, cluster = placement.mesh, cost.cluster
    if step.kind is ActKind.SLICE:
        before, after = (piece_specs([spec], [nd], mesh)[0].expected.nbytes for nd in (source, step.target))
        return Features(step.kind, 0, min(before, after) + after)
    others = tuple(B if axis in step.axes else sbp for axis, sbp in enumerate(source))
    rank = placement.devices[largest_position(others, mesh)]
    task = boxing_task(spec, source, step, placement, rank)
    groups = placement.groups(*step.axes)
    hops = 1 if step.kind is ActKind.ROTATE else math.prod(mesh[axis] for axis in step.axes) - 1
    level = "inter" if any(map(cluster.crosses_nodes, groups)) else "intra"
    shapes = {tuple(map(len, nodes_of(cluster, group))) for group in groups}
    to_all = step.kind is ActKind.ALL_TO_ALL and len(step.axes) == 1
    to_all |= cluster.device.backend == "numpy" and step.kind in PARTS
    to_all &= math.prod(mesh) % cluster.devices_per_node == 0
    near = max((len(one) for one in nodes_of(cluster, task.group)), default=1) - 1 if to_all and len(shapes) == 1 else 0
    flat = Features(step.kind, 0, most_sent_nbytes(step.kind, task, spec), hops, level, near=near)
    if level == "intra" or step.kind not in PARTS or spec.ragged is not None or len(shapes) > 1 or shapes == {()}:
        return flat
    task = replace(task, nodes=nodes_of(cluster, task.group))
    most = [max(sizes) * spec.dtype.nbytes for sizes in zip(*part_sizes(step.kind, task).values(), strict=True)]
    others_on = {"intra": len(task.nodes[0]) - 1, "inter": len(task.nodes) - 1}
    parts = tuple(
        Features(kind, 0, nbytes, others_on[level], level)
        for (kind, level), nbytes in zip(PARTS[step.kind], most, strict=True)
    )
    two = Features(step.kind, 0, sum(most), sum(part.hops for part in parts), "inter", parts)
    return min(flat, two, key=cost.seconds)
