"""One binary tree for every sum over the micro-batches of a step, whichever ranks compute them.

    micro-batches of the global batch, by index      0 1 2 3 4 5
    pairs of neighbours                              (0 1) (2 3) (4 5)
    pairs of these; what has none waits              ((0 1) (2 3)) (4 5)
    the sum                                          (((0 1) (2 3)) (4 5))

Floating-point sums depend on their order. Where a rank's micro-batches are neighbours and a power of two, they are the
leaves of one node, and its sum is the same number however many ranks there are; what reductions between ranks add up
are then the nodes above (`combined`). So all plans of equal micro-batches give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from executor.runtime.transport.base import HostArray
from strategy.base.errors import PlanError, report
from strategy.graph.graph import Graph, Phase
from strategy.graph.ops.base import Array
from strategy.layout.layout import Layout
from strategy.program.program import LoadTask, Program
from strategy.sbp.sbp import Partial

Combine = Callable[[HostArray, HostArray, HostArray], object]
"""`combine(left, right, into)`."""


def combined(
    terms: Sequence[HostArray], combine: Combine, into: HostArray, scratch: Callable[[int], HostArray]
) -> HostArray:
    """The root over `terms`, which stay as they are: `into`, or the term itself where it is the only one.

    `scratch(depth)` gives memory like `into`, for right halves.
    """

    def node(begin: int, end: int, place: HostArray, depth: int) -> HostArray:
        if end - begin == 1:
            return terms[begin]
        middle = begin + left_half(end - begin)
        left = node(begin, middle, place, depth + 1)
        combine(left, node(middle, end, scratch(depth), depth + 1), place)
        return place

    return node(0, len(terms), into, 0)


def left_half(count: int) -> int:
    """How many of `count` leaves, two at least, are in the left half of their node."""
    return 1 << (count - 1).bit_length() - 1


@dataclass(slots=True)
class TreeSum:
    """The sum of `leaves` arrays that come one after the other; what it keeps meanwhile grows with their logarithm.

    `make` gives memory for a term, `combine` adds up two.
    """

    leaves: int
    make: Callable[[], Array]
    combine: Combine
    _waiting: dict[int, Array] = field(default_factory=dict)
    """Level -> a left half whose right half is still to come."""
    _free: list[Array] = field(default_factory=list)
    _count: int = 0

    def room(self) -> Array:
        """Memory to write the next leaf into."""
        if not self._free:
            self._free.append(self.make())
        return self._free[-1]

    def add(self) -> Array | None:
        """Take what was written into `room()`; after the last leaf, the sum, which is whole until the next leaf."""
        node, level = self._free.pop(), 0
        self._count += 1
        while level in self._waiting:
            node = self._joined(self._waiting.pop(level), node)
            level += 1
        if self._count < self.leaves:
            self._waiting[level] = node
            return None
        for left in [self._waiting[level] for level in sorted(self._waiting)]:
            node = self._joined(left, node)
        self._waiting.clear()
        self._count = 0
        self._free.append(node)
        return node

    def _joined(self, left: Array, right: Array) -> Array:
        self.combine(left, right, left)
        self._free.append(right)
        return left


def check_bitwise(program: Program, graph: Graph, layout: Layout) -> None:
    """Refuse a plan whose sums over micro-batches are not in one tree: they are whole before anything is made of them.

    Raises:
        PlanError, GraphError: with everything that stands in the way.
    """
    problems = []
    count = program.num_micro_batches
    shares = {
        (name, box[0])
        for actor in program.actors
        if isinstance(actor.task, LoadTask)
        for name, box in zip(actor.task.inputs, actor.task.boxes, strict=True)
        if box
    }
    if any(actor.task.absent for actor in program.actors if isinstance(actor.task, LoadTask)):
        problems.append(PlanError("an input is loaded as terms of a sum", hint="pin its layout"))
    parts = max((sum(other == name for other, _ in shares) for name, _ in shares), default=1)
    if parts > 1 and count & (count - 1):
        problems.append(
            PlanError(
                "the micro-batches of a rank are no node of the tree",
                got=f"{count} micro-batches on each of {parts} ranks",
                expected="a power of two, or one rank that has all of them",
                hint="search with another micro_batch",
            )
        )
    if len({end - begin for _, (begin, end) in shares}) > 1:
        problems.append(PlanError("ranks have micro-batches of unequal sizes", hint="choose a dp that divides them"))
    early = [a.name for a in program.actors if a.kind.reduces and a.acts_per_step > 1]
    if early:
        problems.append(
            PlanError(
                "terms are added up between ranks in every micro-batch",
                got=early[0],
                expected="once a step",
                hint="pin tp = 1, cp = 1, ep = 1 and zero_stage = 0",
            )
        )
    signed = layout.signatures
    terms = [
        op.name
        for op in graph.ops
        if op.phase is Phase.UPDATE and any(isinstance(sbp, Partial) for out in signed[op.name].outputs for sbp in out)
    ]
    if terms:
        problems.append(
            PlanError(
                "terms that ranks are still to add up are made of sums over micro-batches",
                got=terms[0],
                hint=f'pin "{graph.by_name[terms[0]].outputs[0]}" to B in [sbp], and zero_stage = 0',
            )
        )
    report(problems, where="--bitwise")
