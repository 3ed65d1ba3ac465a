"""Folding: where all ranks of a stage do the same at the same times, one stands for all of them.

They do if they hold equally large pieces, if the busiest ranks of all groups send equally much in every collective, if
all send equally much in every transfer, and each of them sends or receives in it. Then no rank ever waits longer than
another, and the acts of the first rank of every stage, meeting only each other, take place when they would among all.

Equally much is up to what dims cannot be cut evenly. A collective ends for its whole group with the busiest rank there,
which may send more than others: where pieces move along several axes at once, some have a part of what they want
already. So the one that stands for others is taken to send as much; it holds as much as any, for the first pieces are
the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import present
from strategy.base.numbers import Numbers
from strategy.comm.hierarchical import box_size, by_node, nodes_of
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.comm.sent_bytes import group_part_nbytes
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph
from strategy.hardware.cluster import Cluster
from strategy.layout.arrangement import Action, Arrangement, Pipeline
from strategy.layout.layout import Layout
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, local_boxes
from strategy.sbp.tensor import Rate, Shape, TensorSpec, box_shape, is_empty

UNEVEN_SHARE = 1 / 16
UNEVEN_NBYTES = 4096
"""How much more than another a rank may hold or send, as a share or in bytes, and still be like it: what dims that a
few ranks cannot cut evenly come to."""

Sent = NDArray[np.int64]
"""Bytes that ranks of a placement send in parts of an act: a row per rank, a column per part."""


@dataclass(frozen=True, slots=True)
class Folding:
    """By rank: the one that stands for it, and the bytes that it sends in a step itself."""

    alike: tuple[int, ...]
    sent_bytes_per_step: tuple[int, ...]


def folding(
    graph: Graph,
    layout: Layout,
    pipeline: Pipeline,
    cluster: Cluster,
    arrangement: Arrangement,
    features: Sequence[Features],
    budget: Budget = UNLIMITED,
) -> Folding | None:
    """How the ranks of a laid-out graph fold; None if some of a stage are unlike others.

    `features` are those of the actions, in order.

    Raises:
        OutOfTimeError: the budget was over before it was known.
    """
    return _Folder(graph, layout, pipeline, cluster, arrangement).folding(features, budget)


class _Folder:
    def __init__(
        self, graph: Graph, layout: Layout, pipeline: Pipeline, cluster: Cluster, arrangement: Arrangement
    ) -> None:
        self.graph, self.pipeline, self.cluster, self.arrangement = graph, pipeline, cluster, arrangement
        self.placements = layout.stages.placements
        self.layouts: Numbers[NdSbp] = Numbers()
        self.specs: Numbers[TensorSpec] = Numbers()
        self.known: dict[object, int] = {}
        self.sent: list[Sent | None] = []
        """What the ranks of a stage send, by the numbers that `known` has."""
        self.distances: Numbers[tuple[int, ...]] = Numbers()
        self.between: dict[tuple[int, int], int] = {}
        """Pair of stages -> the number of `by_node` of their ranks."""

    def folding(self, features: Sequence[Features], budget: Budget) -> Folding | None:
        """Of all stages, or none."""
        if not self._hold_alike():
            return None
        acts_of: dict[tuple[int, int], int] = {}
        for action, found in zip(self.arrangement.actions, features, strict=True):
            budget.check()
            if action.kind.is_communication:
                acts = 1 if action.rate is Rate.STEP else self.pipeline.num_micro_batches
                for one in action.members or (action,):
                    number = self._number(one, found)
                    if self.sent[number] is None:
                        return None
                    acts_of[action.stage, number] = acts_of.get((action.stage, number), 0) + acts
        total = np.zeros(sum(len(placement.devices) for placement in self.placements), np.int64)
        ranks = [np.array(placement.devices) for placement in self.placements]
        for (stage, number), acts in acts_of.items():
            sent = present(self.sent[number], "what ranks that are alike send")
            total[ranks[stage]] += acts * sent.sum(axis=1)
        first = {rank: placement.devices[0] for placement in self.placements for rank in placement.devices}
        return Folding(tuple(first[rank] for rank in range(len(total))), tuple(total.tolist()))

    def _hold_alike(self) -> bool:
        """Whether the ranks of every stage hold pieces of one size."""
        held = {
            (
                self.specs.of(self.graph.values[tensor.value].spec),
                self.layouts.of(tensor.layout),
                self.placements[tensor.stage].mesh,
            )
            for tensor in self.arrangement.tensors
        }
        return all(_holds_alike(self.specs[spec], self.layouts[layout], mesh) for spec, layout, mesh in held)

    def _number(self, action: Action, features: Features) -> int:
        """Where `sent` has what the ranks of the action's stage send; there is None if some are unlike others."""
        source, target = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec, here = self.graph.values[target.value].spec, self.placements[action.stage]
        there = self.placements[target.stage]
        layouts = self.layouts.of(source.layout), self.layouts.of(target.layout)
        axes = None if action.step is None else action.step.axes
        distance = self._distance(action.stage, target.stage)
        key = (action.kind, axes, self.specs.of(spec), layouts, here.mesh, there.mesh, distance)
        if key not in self.known:
            crosses = action.kind is ActKind.TRANSFER
            self.known[key] = len(self.sent)
            self.sent.append(self._transferred(action, there) if crosses else self._boxed(action, here, features))
        return self.known[key]

    def _distance(self, source: int, target: int) -> int:
        """A number for what the levels between the ranks of two stages depend on."""
        if (source, target) not in self.between:
            nodes = by_node(self.cluster, self.placements[source], self.placements[target])
            self.between[source, target] = self.distances.of(nodes)
        return self.between[source, target]

    def _boxed(self, action: Action, placement: Placement, features: Features) -> Sent | None:
        """None where some groups take longer than others.

        One stands for all that hold the same at other offsets, on nodes that part it in the same way.
        """
        source, target = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec, step = self.graph.values[target.value].spec, present(action.step, "a boxing step")
        groups = _groups(placement, step.axes)
        boxes = (local_boxes(spec.shape, layout, placement.mesh) for layout in (source.layout, step.target))
        shape = len(placement.devices), len(spec.shape), 2
        held = np.concatenate([np.array(found).reshape(shape)[groups] for found in boxes], axis=1)
        nodes = np.array(placement.devices)[groups] // self.cluster.devices_per_node
        relative = held - held[..., :1].min(axis=1, keepdims=True)
        rows = np.concatenate((relative.reshape(len(groups), -1), nodes - nodes[:, :1]), axis=1)
        number_of: dict[bytes, int] = {}
        number = [number_of.setdefault(row.tobytes(), len(number_of)) for row in rows]
        stands = [number.index(one) for one in range(len(number_of))]
        found = []
        for group in groups[stands]:
            task = boxing_task(spec, source.layout, step, placement, placement.devices[group[0]])
            task = replace(task, nodes=nodes_of(self.cluster, task.group)) if features.parts else task
            found.append(list(group_part_nbytes(action.kind, task, spec).values()))
        sent = np.array(found)[number]
        if not all(map(_even, sent.max(axis=1).T)):
            return None
        whole = np.empty((len(placement.devices), sent.shape[2]), np.int64)
        whole[groups] = sent
        return whole

    def _transferred(self, action: Action, receiver: Placement) -> Sent | None:
        """None where a rank sends or receives nothing, or some send more than others."""
        source, target = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec, sender = self.graph.values[target.value].spec, self.placements[action.stage]
        task = transfer_task(spec, source.layout, sender, target.layout, receiver)
        ends = {m.source for m in task.messages} | {m.target for m in task.messages}
        if not ends.issuperset((*sender.devices, *receiver.devices)):
            return None
        sizes = dict.fromkeys(sender.devices, 0)
        for message in task.messages:
            if message.source != message.target:
                sizes[message.source] += box_size(message.box)
        sent = np.array([(spec.sent_nbytes(sizes[rank]),) for rank in sender.devices])
        return sent if _even(sent) else None


def _groups(placement: Placement, axes: Sequence[int]) -> NDArray[np.int64]:
    """A row per group along some axes: the positions of its ranks among the devices."""
    positions = np.arange(len(placement.devices)).reshape(placement.mesh)
    count = math.prod(placement.mesh[axis] for axis in axes)
    return np.moveaxis(positions, axes, range(-len(axes), 0)).reshape(-1, count)


def _holds_alike(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> bool:
    """Whether all ranks of a mesh hold pieces of one size; of ragged ones, room for as many rows."""
    boxes = set(local_boxes(spec.shape, layout, mesh))
    sizes = {0 if is_empty(box) else spec.piece(box_shape(box)).nbytes for box in boxes}
    return _even(np.array(list(sizes)))


def _even(nbytes: NDArray[np.int64]) -> bool:
    most, least = int(nbytes.max()), int(nbytes.min())
    return most - least <= max(UNEVEN_NBYTES, UNEVEN_SHARE * most)
