"""Whether a plan learns the same bits as any other of equal micro-batches, and which leaves of the sums its ranks have.

    12 micro-batches on 3 ranks      by rank     rank 0: 0 1 2 3     rank 1: 4 5 6 7     rank 2: 8 9 10 11
    8 micro-batches on 2 ranks       in turn     rank 0: 0 2 4 6     rank 1: 1 3 5 7

By rank, a rank's micro-batches are neighbours, which it adds up before ranks exchange anything. In turn, ranks exchange
gradients in every micro-batch, as stages 2 and 3 of ZeRO do: what one such reduction gives is a node.

Sums over micro-batches are in one tree then, and every rank computes what one rank alone would compute of its
micro-batch. What is computed of pieces, as along a tensor axis, is added up in another order than there: refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from executor.runtime.summation_tree import Node, nodes_over
from strategy.base.errors import PlanError, report
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.ops import REGISTRY
from strategy.layout.layout import Layout
from strategy.program.program import Actor, BoxingTask, LoadTask, OpTask, Program
from strategy.sbp.sbp import Partial


@dataclass(frozen=True, slots=True)
class SummationOrder:
    """How the micro-batches of a step are dealt out as leaves: `count` to each of `parts` ranks."""

    parts: int
    count: int
    by_rank: bool

    @property
    def total(self) -> int:
        """Leaves of the tree."""
        return self.parts * self.count

    def leaves(self, place: int) -> Sequence[int]:
        """What the rank at a place of the data axis has, in the order of its micro-batches."""
        if self.by_rank:
            return range(place * self.count, (place + 1) * self.count)
        return range(place, self.total, self.parts)

    def nodes(self, place: int) -> Sequence[Node]:
        """The sums that this rank can make of them."""
        return tuple(nodes_over(self.leaves(place), self.total))


def is_sum(graph: Graph, actor: Actor) -> bool:
    """Whether an actor adds up micro-batches, if only on other ranks; a maximum is the same in any order."""
    task = actor.task
    if not isinstance(task, OpTask) or len(task.inputs) != 1:
        return False
    return REGISTRY[graph.by_name[task.op].kind].accumulates and task.input_boxes[0] == task.output_boxes[0]


def summation_order(program: Program, graph: Graph, layout: Layout, axes: Sequence[str]) -> SummationOrder:
    """How the sums of a plan go.

    Args:
        program: that the plan runs.
        graph: of its ops.
        layout: of its values.
        axes: names of the axes of a stage's mesh.

    Raises:
        PlanError, GraphError: they are not in one tree, with everything that stands in the way.
    """
    shares = {
        (name, box[0])
        for actor in program.actors
        if isinstance(actor.task, LoadTask)
        for name, box in zip(actor.task.inputs, actor.task.boxes, strict=True)
        if box
    }
    parts = max((sum(other == name for other, _ in shares) for name, _ in shares), default=1)
    in_turn = any(actor.kind.reduces and actor.acts_per_step > 1 for actor in program.actors)
    order = SummationOrder(parts, program.num_micro_batches, by_rank=not in_turn)
    problems: list[PlanError] = []
    if any(actor.task.absent for actor in program.actors if isinstance(actor.task, LoadTask)):
        problems.append(PlanError("an input is loaded as terms of a sum", hint="pin its layout"))
    if len({end - begin for _, (begin, end) in shares}) > 1:
        problems.append(PlanError("ranks have micro-batches of unequal sizes", hint="choose a dp that divides them"))
    problems += _Reductions(program, graph, layout, axes, order).problems()
    problems += _unfinished_sums(graph, layout, axes)
    report(problems, where="--bitwise")
    return order


@dataclass(frozen=True, slots=True)
class _Reductions:
    """The reductions between ranks, and what may be wrong with them."""

    program: Program
    graph: Graph
    layout: Layout
    axes: Sequence[str]
    order: SummationOrder

    def problems(self) -> Iterator[PlanError]:
        """The first of every kind."""
        found: dict[str, PlanError] = {}
        written = {port.register: actor for actor in self.program.actors for port in actor.writes}
        read: dict[int, list[Actor]] = {}
        for actor in self.program.actors:
            for port in actor.reads:
                read.setdefault(port.register, []).append(actor)
        for actor in self.program.actors:
            if isinstance(actor.task, BoxingTask) and actor.kind.reduces:
                for problem in self._problems_of(actor, actor.task, written, read):
                    found.setdefault(problem.problem, problem)
        yield from found.values()

    def _problems_of(
        self, actor: Actor, task: BoxingTask, written: Mapping[int, Actor], read: Mapping[int, Sequence[Actor]]
    ) -> Iterator[PlanError]:
        early, along = actor.acts_per_step > 1, self._axes_of(task.group)
        sums = [is_sum(self.graph, written[port.register]) for port in actor.reads]
        if early:
            after = [other for port in actor.writes for other in read.get(port.register, ())]
            if len(task.group) != self.order.parts or not all(is_sum(self.graph, other) for other in after):
                yield PlanError(
                    f"along the {along} axis terms of a micro-batch are added up that one rank would not cut",
                    got=actor.name,
                    expected="sums over micro-batches alone",
                    hint=f"pin {_DEGREES.get(along, along)} = 1, or what it gives to the layout that it reads",
                )
            elif self.order.parts & (self.order.parts - 1):
                yield PlanError(
                    f"along the {along} axis one micro-batch of all ranks is no node of the tree",
                    got=f"{self.order.parts} ranks that exchange in every micro-batch",
                    expected="a power of two",
                    hint="choose another dp, or zero_stage below 2",
                )
        elif any(sums) and (len(task.group) != self.order.parts or not all(sums)):
            yield PlanError(
                f"along the {along} axis sums over micro-batches are added up with others",
                got=actor.name,
                expected="the ranks of the data axis, once",
                hint=f"pin {_DEGREES.get(along, along)} = 1",
            )
        if (early or any(sums)) and not self._keeps_order(task):
            yield PlanError(
                f"along the {along} axis sums go inside nodes first, which are no nodes of the tree",
                got=actor.name,
                expected="as many ranks in each as a power of two, side by side",
                hint="choose another dp",
            )

    def _keeps_order(self, task: BoxingTask) -> bool:
        """Whether going inside nodes first changes nothing."""
        if not task.nodes:
            return True
        sizes, in_a_row = {len(node) for node in task.nodes}, tuple(rank for node in task.nodes for rank in node)
        (size, *others) = sizes
        split = any(len(self.order.nodes(place)) > 1 for place in range(self.order.parts))
        return not others and not size & (size - 1) and in_a_row == task.group and not split

    def _axes_of(self, group: Sequence[int]) -> str:
        """The names of the axes along which ranks differ."""
        for placement in self.layout.stages.placements:
            if set(group) <= set(placement.devices):
                coords = [placement.coords(rank) for rank in group]
                names = [name for name, *at in zip(self.axes, *coords, strict=True) if len(set(at)) > 1]
                return " and ".join(names) or "data"
        return "pipeline"


_DEGREES = {"data": "dp", "tensor": "tp", "context": "cp", "expert": "ep"}


def _unfinished_sums(graph: Graph, layout: Layout, axes: Sequence[str]) -> Iterator[PlanError]:
    """Ops behind the last micro-batch whose results ranks are still to add up, if what is learned follows from them."""
    for op in graph.ops:
        along = {
            name
            for out in layout.signatures[op.name].outputs
            for name, sbp in zip(axes, out, strict=True)
            if isinstance(sbp, Partial)
        }
        if op.phase is Phase.UPDATE and along and _teaches(graph, op):
            names = " and ".join(name for name in axes if name in along)
            norm = (
                "" if _teaches(graph, op, but_norm=True) else ", or train without a limit on the norm (max_norm = inf)"
            )
            yield PlanError(
                f"along the {names} axis terms that ranks are still to add up are made of sums over micro-batches",
                got=op.name,
                expected="sums that are whole, or split",
                hint=f'pin "{op.outputs[0]}" to B or S in [sbp]{norm}',
            )
            return


def _teaches(graph: Graph, op: Op, *, but_norm: bool = False) -> bool:
    """Whether a variable that is learned follows from what an op gives, if only by the norm or in other ways, too."""
    seen, left = {op.name}, [op]
    while left:
        one = left.pop()
        if one.updates:
            return True
        if REGISTRY[one.kind].clips and (but_norm or one.attrs.get("max_norm") == math.inf):
            continue  # without a limit, the factor is the count's alone, whatever the norm
        for value in one.outputs:
            for other in graph.consumers[value]:
                if other.name not in seen:
                    seen.add(other.name)
                    left.append(other)
    return False
