"""Sums over micro-batches on one rank, in one tree; where they are several nodes, what a reduction makes of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from executor.runtime.bitwise import SummationOrder, is_sum
from executor.runtime.collectives import prepare
from executor.runtime.kernels.base import Kernels
from executor.runtime.partial_sums import PartialSums
from executor.runtime.pieces import Requests, piece_of
from executor.runtime.summation_tree import Node, TreeSum, most_held
from executor.runtime.transport.base import HostArray, Transport
from strategy.graph.graph import Graph
from strategy.graph.ops.base import Call, OpDef
from strategy.graph.ops.scratch import Scratch
from strategy.program.program import Actor, BoxingTask, Program


class TreeSums:
    """Those of a rank; every block of a register has memory of its own for its nodes."""

    def __init__(self, order: SummationOrder, program: Program, graph: Graph, rank: int) -> None:
        self._order, self._rank = order, rank
        mine = [actor for actor in program.actors if actor.rank == rank]
        self._sums = {port.register for actor in mine if is_sum(graph, actor) for port in actor.writes}
        self._groups = {
            port.register: actor.task.group
            for actor in mine
            if isinstance(actor.task, BoxingTask) and actor.kind.reduces and actor.acts_per_step == 1
            for port in actor.reads
            if port.register in self._sums
        }
        self._program = program
        self._held: list[HostArray] = []
        self._trees: dict[int, TreeSum] = {}
        self._partials: dict[tuple[int, int], Sequence[HostArray]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes that it holds by now."""
        return sum(int(array.nbytes) for array in self._held)

    @property
    def planned_nbytes(self) -> int:
        """Bytes that it holds once all acts were done: nodes that wait for others, and those that are exchanged."""
        registers, total = self._program.registers, 0
        for actor in self._program.actors:
            for port in actor.writes if actor.rank == self._rank else ():
                if port.register in self._sums:
                    register = registers[port.register]
                    total += most_held(*self._leaves(port.register, port.acts_per_piece)) * register.block_nbytes
                    count = len(self._nodes(port.register))
                    total += count * register.nbytes if count > 1 else 0
        return total

    def adds_up(self, register: int) -> bool:
        """Whether what is written to a register is a sum over micro-batches."""
        return register in self._sums

    def splits(self, actor: Actor) -> bool:
        """Whether an actor reduces what is several nodes on some rank."""
        group = self._groups.get(actor.reads[0].register) if actor.reads and actor.kind.reduces else None
        return group is not None and any(len(self._order.nodes(place)) > 1 for place in range(len(group)))

    def accumulate(
        self, index: int, register: int, definition: OpDef, call: Call, leaves: int, kernels: Kernels
    ) -> Callable[[int], None]:
        """The act of an accumulator whose terms are leaves; one tree whichever blocks its acts use."""
        (total,) = call.outputs
        tree = self._trees.get(index)
        if tree is None:
            tree = self._trees[index] = TreeSum(
                *self._leaves(register, leaves),
                lambda: self._like(total),
                lambda one, other, into: kernels.xp.add(one, other, out=into),
            )
        partials = self._partials_of(register, total) if len(self._nodes(register)) > 1 else ()

        def act(number: int) -> None:
            call.number, call.first_of_piece = number, True
            call.outputs = (tree.room(),)
            kernels.bind(definition, call).run()
            found = tree.add()
            if found is not None:
                # The register has the sum of the rank for those who look for numbers that are not finite.
                kernels.xp.copyto(total, found[0])
                for node in found[1:]:
                    kernels.xp.add(total, node, out=total)
                for place, node in zip(partials, found, strict=False):
                    kernels.xp.copyto(place, node)
            elif number % leaves == 0:
                total.fill(0)  # nobody reads it yet but who looks for numbers that are not finite

        return act

    def reduce(
        self,
        actor: Actor,
        task: BoxingTask,
        number: int,
        transport: Transport,
        reads: Sequence[HostArray],
        target: HostArray,
        scratch: Scratch,
    ) -> Callable[[int], Requests]:
        """The act of an actor that `splits`; several registers are packed as one flat tensor."""
        held = [self._partials_of(port.register, read) for port, read in zip(actor.reads, reads, strict=True)]
        sources, copies = list(held[0]), list[tuple[HostArray, HostArray]]()
        if len(reads) > 1:
            me = task.group.index(self._rank)
            for at in range(len(sources)):
                pieces = _in_row(task, me, [of_register[at] for of_register in held])
                sources[at] = scratch.get(f"packed {at}", (sum(piece.size for piece in pieces),), reads[0].dtype)
                begin = 0
                for piece in pieces:
                    copies.append((sources[at][begin : begin + piece.size].reshape(piece.shape), piece))
                    begin += piece.size
        nodes = [self._order.nodes(place) for place in range(len(task.group))]
        partial = PartialSums(sources, nodes, self._order.total)
        start = prepare(actor.kind, task, self._rank, number, transport, sources[0], target, scratch, partial)

        def act(_: int) -> Requests:
            for into, piece in copies:
                scratch.xp.copyto(into, piece)
            return start()

        return act

    def _place(self, register: int) -> int:
        return self._groups[register].index(self._rank)

    def _leaves(self, register: int, leaves: int) -> tuple[Sequence[int], int]:
        """Those of this rank, in the order in which they come, and how many the tree has."""
        if register in self._groups:
            return self._order.leaves(self._place(register)), self._order.total
        return range(leaves), leaves

    def _nodes(self, register: int) -> Sequence[Node]:
        """What this rank can add up of a sum: all of it, where no other rank has terms."""
        return self._order.nodes(self._place(register)) if register in self._groups else ((0, self._order.total),)

    def _partials_of(self, register: int, block: HostArray) -> Sequence[HostArray]:
        """Memory for the nodes of one block; of one node, the block itself."""
        key = register, block.__array_interface__["data"][0]
        if key not in self._partials:
            count = len(self._nodes(register))
            self._partials[key] = [self._like(block) for _ in range(count)] if count > 1 else [block]
        return self._partials[key]

    def _like(self, block: HostArray) -> HostArray:
        """Memory for a term, or a node."""
        self._held.append(np.empty_like(block))
        return self._held[-1]


def summation_nbytes(order: SummationOrder, program: Program, graph: Graph) -> tuple[int, ...]:
    """Bytes that the sums of each rank take beside its registers."""
    return tuple(TreeSums(order, program, graph, rank).planned_nbytes for rank in range(program.ranks))


def _in_row(task: BoxingTask, me: int, arrays: Sequence[HostArray]) -> Sequence[HostArray]:
    """Arrays as one flat tensor holds them: one after the other, or what each rank is to have of all, rank by rank."""
    if not task.members:
        return arrays
    return [
        piece_of(array, member.target_boxes[rank], member.source_boxes[me])
        for rank in range(len(task.group))
        for member, array in zip(task.members, arrays, strict=True)
    ]
