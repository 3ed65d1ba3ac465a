"""Folding: where all ranks of a stage do the same at the same times, one stands for all of them.

They do if they hold equally large pieces, send equally much in every collective and transfer, and each of them sends or
receives in every transfer. Then no rank ever waits longer than another, and the acts of the first rank of every stage,
meeting only each other, take place when they would among all.

Equally much is up to what dims cannot be cut evenly. A collective ends with its busiest rank, so the one that stands
for others is taken to send as much; it holds as much as any, for the first pieces are the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategy.base.errors import present
from strategy.base.numbers import Numbers
from strategy.comm.boxing import boxing_task, group_part_nbytes, transfer_task
from strategy.comm.hierarchical import box_size, by_node, nodes_of
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph
from strategy.hardware.cluster import Cluster
from strategy.layout.arrangement import Action, Arrangement, Pipeline
from strategy.layout.layout import Layout
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, local_boxes
from strategy.sbp.tensor import Rate, Shape, TensorSpec

UNEVEN_SHARE = 1 / 16
UNEVEN_NBYTES = 4096
"""How much more than another a rank may hold or send, as a share or in bytes, and still be like it: what dims that a
few ranks cannot cut evenly come to."""

Sent = tuple[tuple[int, ...], ...]
"""Bytes that each rank of a placement sends in each part of an act."""


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
) -> Folding | None:
    """How the ranks of a laid-out graph fold; None if some of a stage are unlike others.

    `features` are those of the actions, in order.
    """
    return _Folder(graph, layout, pipeline, cluster, arrangement).folding(features)


class _Folder:
    def __init__(
        self, graph: Graph, layout: Layout, pipeline: Pipeline, cluster: Cluster, arrangement: Arrangement
    ) -> None:
        self.graph, self.pipeline, self.cluster, self.arrangement = graph, pipeline, cluster, arrangement
        self.placements = layout.stages.placements
        self.layouts: Numbers[NdSbp] = Numbers()
        self.known: dict[object, int] = {}
        self.sent: list[Sent | None] = []
        """What the ranks of a stage send, by the numbers that `known` has."""
        self.distances: Numbers[tuple[int, ...]] = Numbers()
        self.between: dict[tuple[int, int], int] = {}
        """Pair of stages -> the number of `by_node` of their ranks."""

    def folding(self, features: Sequence[Features]) -> Folding | None:
        """Of all stages, or none."""
        if not self._hold_alike():
            return None
        acts_of: dict[tuple[int, int], int] = {}
        for action, found in zip(self.arrangement.actions, features, strict=True):
            if action.kind.is_communication:
                number = self._number(action, found)
                if self.sent[number] is None:
                    return None
                acts = 1 if action.rate is Rate.STEP else self.pipeline.num_micro_batches
                acts_of[action.stage, number] = acts_of.get((action.stage, number), 0) + acts
        total = [0] * sum(len(placement.devices) for placement in self.placements)
        for (stage, number), acts in acts_of.items():
            sent = present(self.sent[number], "what ranks that are alike send")
            for rank, parts in zip(self.placements[stage].devices, sent, strict=True):
                total[rank] += acts * sum(parts)
        first = {rank: placement.devices[0] for placement in self.placements for rank in placement.devices}
        return Folding(tuple(first[rank] for rank in range(len(total))), tuple(total))

    def _hold_alike(self) -> bool:
        """Whether the ranks of every stage hold pieces of one size."""
        specs: Numbers[TensorSpec] = Numbers()
        held = {
            (
                specs.of(self.graph.values[tensor.value].spec),
                self.layouts.of(tensor.layout),
                self.placements[tensor.stage].mesh,
            )
            for tensor in self.arrangement.tensors
        }
        return all(_holds_alike(specs[spec], self.layouts[layout], mesh) for spec, layout, mesh in held)

    def _number(self, action: Action, features: Features) -> int:
        """Where `sent` has what the ranks of the action's stage send; there is None if some are unlike others."""
        source, target = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec, here = self.graph.values[target.value].spec, self.placements[action.stage]
        there = self.placements[target.stage]
        layouts = self.layouts.of(source.layout), self.layouts.of(target.layout)
        axes = None if action.step is None else action.step.axes
        distance = self._distance(action.stage, target.stage)
        key = (action.kind, axes, spec, layouts, here.mesh, there.mesh, distance)
        if key not in self.known:
            crosses = action.kind is ActKind.TRANSFER
            sent = self._transferred(action, there) if crosses else self._boxed(action, here, features)
            even = sent is not None and all(map(_even, zip(*sent, strict=True)))
            self.known[key] = len(self.sent)
            self.sent.append(sent if even else None)
        return self.known[key]

    def _distance(self, source: int, target: int) -> int:
        """A number for what the levels between the ranks of two stages depend on."""
        if (source, target) not in self.between:
            nodes = by_node(self.cluster, self.placements[source], self.placements[target])
            self.between[source, target] = self.distances.of(nodes)
        return self.between[source, target]

    def _boxed(self, action: Action, placement: Placement, features: Features) -> Sent:
        source, target = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec, step = self.graph.values[target.value].spec, present(action.step, "a boxing step")
        found: dict[int, tuple[int, ...]] = {}
        for group in placement.groups(*step.axes):
            task = boxing_task(spec, source.layout, step, placement, group[0])
            task = replace(task, nodes=nodes_of(self.cluster, task.group)) if features.parts else task
            found |= group_part_nbytes(action.kind, task, spec)
        return tuple(found[rank] for rank in placement.devices)

    def _transferred(self, action: Action, receiver: Placement) -> Sent | None:
        """None where a rank sends or receives nothing."""
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
        return tuple((spec.sent_nbytes(sizes[rank]),) for rank in sender.devices)


def _holds_alike(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> bool:
    """Whether all ranks of a mesh hold pieces of one size."""
    boxes = () if spec.ragged is not None else local_boxes(spec.shape, layout, mesh)
    return bool(boxes) and _even([box_size(box) * spec.dtype.nbytes for box in set(boxes)])


def _even(nbytes: Sequence[int]) -> bool:
    most = max(nbytes)
    return most - min(nbytes) <= max(UNEVEN_NBYTES, UNEVEN_SHARE * most)
