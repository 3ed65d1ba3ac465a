"""What an act does: an actor bound to the arrays of the blocks that it uses, as one callable.

Bound once per actor and choice of blocks, so that an act itself builds nothing and searches nothing. The callable
takes the number of the act. It returns None when the act is over with it, and otherwise the requests to wait for,
one after the other.

On a device with streams an act is over when all that it does is ordered on the current stream, the acts of the host
aside: ops of which the host computes the result, what moves ragged rows between ranks, or computes with them by array
code, for which the host reads their count, and, where the transport is not in stream order, movements between ranks.
These are staged in memory of the host, unless the transport takes that of the device (CUDA-aware MPI): then what comes
before and after the movement itself, cuts and sums, is given to the device, and the host waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from executor.runtime.bitwise import SummationOrder
from executor.runtime.collectives import prepare
from executor.runtime.finiteness import HeldUpdates
from executor.runtime.kernels.base import Kernels
from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.neutral import neutral_element
from executor.runtime.pieces import Requests, Start, piece_of
from executor.runtime.ragged import terms_may_lack_rows
from executor.runtime.registers import Registers, allocate_bytes
from executor.runtime.transport.base import Group, HostArray, Parcel, PendingTransfer, Transport, wait
from executor.runtime.tree_sums import TreeSums
from executor.runtime.workspaces import DeclaringScratch, ScratchSection, assign_workspaces
from strategy.base.errors import EnvironmentLacks, PlanError, present
from strategy.graph.graph import Graph, Phase
from strategy.graph.ops.base import Array, Call, OpDef, Workspace
from strategy.graph.ops.half_precision import act_of
from strategy.graph.ops.scratch import Scratch, ScratchSizes
from strategy.graph.ops.traits import Movement
from strategy.program.program import Actor, BoxingTask, LoadTask, OpTask, Program, TransferTask, neighbours
from strategy.program.protocol import rendezvous_members, streams_of_actors
from strategy.sbp.placement import Space
from strategy.sbp.ragged import Rows

Run = Callable[[int], Requests | None]
Load = Callable[[LoadTask, int, Sequence[HostArray]], PendingTransfer | None]
"""`load(task, number, arrays)` fills one array per input of the task with the piece of the `number`-th micro-batch.

It gives what to wait for, where the batch is made beside the steps (`executor.data.feed`).
"""


class ActBinder:
    """Binds the actors of one rank.

    `registry` maps the kind of an op to its definition; a task's ports are numbered reads first, then writes. With
    `sums_in`, sums over micro-batches are added up in one tree (`summation_tree`).
    """

    def __init__(
        self,
        program: Program,
        graph: Graph,
        rank: int,
        registers: Registers,
        transport: Transport,
        kernels: Kernels,
        registry: Mapping[str, OpDef],
        load: Load,
        *,
        hold_updates: bool = False,
        sums_in: SummationOrder | None = None,
    ) -> None:
        self._tree_sums = None if sums_in is None else TreeSums(sums_in, program, graph, rank)
        self._program = program
        self._graph = graph
        self._rank = rank
        self._registers = registers
        self._transport = transport
        self._kernels = kernels
        self._registry = registry
        self._load = load
        self.updates = HeldUpdates() if hold_updates and kernels.host else None
        self._members = rendezvous_members(program)
        self._loads: dict[int, list[list[HostArray]]] = {}
        self._workspaces: list[Scratch] = [Workspace(kernels.xp) for _ in program.actors]
        self._workspace_nbytes = 0
        self._staging = [Workspace(np) for _ in program.actors]
        self._repeats: dict[int, bool] = {}

    @property
    def scratch_nbytes(self) -> int:
        """Bytes of the scratch of ops and of movements, which no plan counts; on the host of what there is so far."""
        own = (one for one in (*self._workspaces, *self._staging) if isinstance(one, Workspace))
        return self._workspace_nbytes + sum(int(array.nbytes) for one in own for array in one.arrays.values())

    @property
    def summation_nbytes(self) -> int:
        """Bytes of sums in one tree beside the registers, so far."""
        return 0 if self._tree_sums is None else self._tree_sums.nbytes

    def assign_workspaces(self, blocks: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> None:
        """Set memory of the device aside for the scratch of its acts, before they are bound.

        Args:
            blocks: actor -> blocks that some act of it reads and writes.

        Raises:
            EnvironmentLacks: there is not so much left, and what most of it is for.
        """
        declared = {
            index: found
            for index, (reads, writes) in blocks.items()
            if self._on_device(index) and (found := self._declared(index, reads, writes)) != ScratchSizes()
        }
        stream_of = streams_of_actors(self._program)
        places, nbytes = assign_workspaces(declared, {index: stream_of[index] for index in declared})
        try:
            memory = allocate_bytes(nbytes, self._kernels, Space.DEVICE)
        except MemoryError as error:
            most = max(declared, key=lambda index: sum(declared[index].anew) + sum(declared[index].kept))
            raise EnvironmentLacks(
                f"rank {self._rank}: acts need {nbytes} bytes of scratch on the device beside its registers, and there "
                f"are not so many left ({error}); most is for {self._program.actors[most].name}; search with a lower "
                "memory limit, or free the memory that others hold"
            ) from error
        self._workspace_nbytes = nbytes
        for index in blocks:
            owner, place = self._program.actors[index].name, places.get(index, _NO_SCRATCH)
            if self._on_device(index):
                self._workspaces[index] = place.of(memory, self._kernels.xp, owner)

    def _declared(self, index: int, reads: Sequence[int], writes: Sequence[int]) -> ScratchSizes:
        """What acts of an actor of the device use beside its registers."""
        task = self._program.actors[index].task
        if isinstance(task, OpTask):
            call = None if task.idle else self._call_of(index, *self._ports(index, reads, writes))
            return ScratchSizes() if call is None else self._kernels.scratch(*call)
        declaring = self._workspaces[index] = DeclaringScratch()
        self.bind(index, reads, writes)
        return declaring.sizes

    def is_host(self, index: int) -> bool:
        """Whether the host is the actor itself: a device with streams is not enough for its acts.

        The act of a rank beside the owner is the host's, too, where it writes scalars in the host's memory.
        """
        actor = self._program.actors[index]
        ports = [self._program.registers[port.register] for port in (*actor.reads, *actor.writes)]
        if isinstance(actor.task, OpTask) and actor.task.idle:
            return any(ports[port].space is Space.HOST and ports[port].nbytes for port in actor.task.outputs)
        if any(register.ragged is not None for register in ports):
            return not (self._moves_whole(actor) or self._counts_on_device(index))
        match actor.task:
            case OpTask() as task:
                return self._graph.on_host(self._graph.by_name[task.op])
            case LoadTask():
                return False
        return actor.rendezvous is not None and not self._transport.in_stream_order

    def _on_device(self, index: int) -> bool:
        """Whether what an act computes lies on a device with streams; of the host, what a transport moves there."""
        if self._kernels.streams is None:
            return False
        actor, registers = self._program.actors[index], self._program.registers
        moves = isinstance(actor.task, BoxingTask | TransferTask) and actor.rendezvous is not None
        ragged = any(registers[port.register].ragged is not None for port in (*actor.reads, *actor.writes))
        return not self.is_host(index) or (moves and not ragged and self._transport.takes_device)

    def _moves_whole(self, actor: Actor) -> bool:
        """Whether all that an actor does is to copy memory between device and host: of rows, the count with them."""
        op = self._graph.by_name[actor.task.op] if isinstance(actor.task, OpTask) else None
        return op is not None and isinstance(self._registry[op.kind].cost, Movement)

    def _counts_on_device(self, index: int) -> bool:
        """Whether an actor computes with ragged rows of which the device alone knows the count."""
        actor, task = self._program.actors[index], self._program.actors[index].task
        if not isinstance(task, OpTask) or self._rows_may_differ or self._graph.on_host(self._graph.by_name[task.op]):
            return False
        found = self._call_of(index, *self._ports(index, [0] * len(actor.reads), [0] * len(actor.writes)))
        return found is not None and self._kernels.counts_rows(*found)

    @cached_property
    def _rows_may_differ(self) -> bool:
        """Whether operands of an act may have different rows, of which only the host finds those that they share."""
        return terms_may_lack_rows(self._program, self._graph)

    def is_batched(self, index: int) -> bool:
        """Whether kernels launch an actor's acts together with those like it that follow."""
        task = self._program.actors[index].task
        if not isinstance(task, OpTask) or task.idle or self.is_host(index):
            return False
        return self._graph.by_name[task.op].kind in self._kernels.batched

    @property
    def repeating(self) -> frozenset[int]:
        """Of the actors that are bound, those of which every act gives the device the same by each choice of blocks."""
        return frozenset(index for index, repeats in self._repeats.items() if repeats)

    def touches_device(self, index: int) -> bool:
        """Whether an actor uses memory of the device."""
        actor, registers = self._program.actors[index], self._program.registers
        return any(registers[port.register].space is Space.DEVICE for port in (*actor.reads, *actor.writes))

    def buffers(self, index: int) -> int:
        """How many buffers the host fills for an actor in turn; none but for loaders."""
        return _LOAD_BUFFERS if isinstance(self._program.actors[index].task, LoadTask) else 0

    def bind(self, index: int, read_blocks: Sequence[int], write_blocks: Sequence[int]) -> Run:
        """The act of an actor that uses these blocks of its registers."""
        actor = self._program.actors[index]
        reads, writes = self._ports(index, read_blocks, write_blocks)
        match actor.task:
            case OpTask() as task:
                return self._op(index, task, reads, writes)
            case LoadTask() as task:
                return self._loader(index, task, writes)
            case BoxingTask() as task if self._tree_sums is not None and self._tree_sums.splits(actor):
                return self._reduce_nodes(index, actor, task, reads, writes)
            case BoxingTask() as task if len(actor.reads) > 1:
                return self._bucket(index, actor, task, reads)
            case BoxingTask() | TransferTask() as task:
                return self._boxing(index, actor, task, reads, writes)
            case None:
                return _nothing if actor.rendezvous is None else self._meet(actor.rendezvous)

    def _ports(
        self, index: int, read_blocks: Sequence[int], write_blocks: Sequence[int]
    ) -> tuple[list[Array], list[Array]]:
        """What an actor reads, and what it writes."""
        actor, block = self._program.actors[index], self._registers.block
        reads = [block(port.register, at) for port, at in zip(actor.reads, read_blocks, strict=True)]
        return reads, [block(port.register, at) for port, at in zip(actor.writes, write_blocks, strict=True)]

    def _call_of(self, index: int, reads: Sequence[Array], writes: Sequence[Array]) -> tuple[OpDef, Call] | None:
        """The act of an op on these arrays; None where all that it does is to copy them between memories."""
        actor, ports = self._program.actors[index], (*reads, *writes)
        task = present(actor.task if isinstance(actor.task, OpTask) else None, "the actor of an op")
        op = self._graph.by_name[task.op]
        definition = self._registry[op.kind]
        if isinstance(definition.cost, Movement):
            return None
        written, on_host = [ports[port] for port in task.outputs], self._graph.on_host(op)
        if len(written) != len(op.outputs) + len(op.updates) or len(task.inputs) != len(op.inputs):
            raise PlanError("an actor's ports are not those of its op", where=actor.name, got=op.name)
        call = Call(
            xp=np if on_host else self._kernels.xp,
            attrs=op.attrs,
            inputs=tuple(ports[port] for port in task.inputs),
            outputs=tuple(written[: len(op.outputs)]),
            updates=tuple(written[len(op.outputs) :]),
            input_boxes=task.input_boxes,
            output_boxes=task.output_boxes,
            workspace=(self._staging if on_host else self._workspaces)[index],
        )
        return definition, call

    def _op(self, index: int, task: OpTask, reads: Sequence[Array], writes: Sequence[Array]) -> Run:
        if task.idle:
            return self._idle([array for port in task.outputs if (array := (*reads, *writes)[port]).size])
        op = self._graph.by_name[task.op]
        found = self._call_of(index, reads, writes)
        if found is None:
            to_host = Movement(Space.HOST) == self._registry[op.kind].cost
            move = self._kernels.download if to_host else self._kernels.upload
            return lambda number: move(memory(reads[0]), memory(writes[0]))
        definition, call = found
        acts_per_piece = max((port.acts_per_piece for port in self._program.actors[index].writes), default=1)
        if self._graph.on_host(op) and not self._kernels.host:
            bound = BoundAct(act_of(definition, call))
        else:
            bound = self._kernels.bind(definition, call)
        self._repeats[index] = bound.repeats and self._repeats.get(index, True)
        run = bound.run

        def act(number: int) -> None:
            call.number = number
            call.first_of_piece = number % acts_per_piece == 0
            run()

        sums, written = self._tree_sums, self._program.actors[index].writes
        if sums is not None and definition.accumulates and sums.adds_up(written[0].register):
            return sums.accumulate(index, written[0].register, definition, call, acts_per_piece, self._kernels)
        if self.updates is not None and op.phase is Phase.UPDATE and op.updates:
            return self.updates.unless_held(act, call)
        return act

    @staticmethod
    def _idle(scalars: Sequence[Array]) -> Run:
        """The act of a rank beside the owner: nothing, and nothing added to the scalars, which are terms of sums."""

        def act(number: int) -> None:
            for scalar in scalars:
                scalar.fill(0)

        return act

    def _loader(self, index: int, task: LoadTask, arrays: Sequence[Array]) -> Run:
        load, upload = self._load, self._kernels.upload
        buffers = [arrays] if self._kernels.host else self._load_buffers(index, arrays)
        absent = [
            (position, neutral_element(array.dtype, task.absent[name]))
            for position, (name, array) in enumerate(zip(task.inputs, arrays, strict=True))
            if name in task.absent
        ]

        def act(number: int) -> Requests | None:
            filled = buffers[number % len(buffers)]
            pending = load(task, number, filled)
            if pending is not None and not pending.test():
                if filled is arrays:
                    return later(pending, filled)
                # What is handed to a device in order is all there when it is handed over.
                wait(pending, self._transport, timeout_s=math.inf)
            finish(filled)
            return None

        def later(pending: PendingTransfer, filled: Sequence[HostArray]) -> Requests:
            yield pending
            finish(filled)

        def finish(filled: Sequence[HostArray]) -> None:
            for position, neutral in absent:
                filled[position].fill(neutral)
            if filled is not arrays:
                for host, array in zip(filled, arrays, strict=True):
                    upload(host, array)

        return act

    def _load_buffers(self, index: int, arrays: Sequence[Array]) -> list[list[HostArray]]:
        """Memory of the host in which batches lie until the device has taken them; the same for all blocks."""
        if index not in self._loads:
            like = self._kernels.host_like
            self._loads[index] = [[like(array) for array in arrays] for _ in range(_LOAD_BUFFERS)]
        return self._loads[index]

    def _boxing(
        self,
        index: int,
        actor: Actor,
        task: BoxingTask | TransferTask,
        reads: Sequence[Array],
        writes: Sequence[Array],
    ) -> Run:
        at, reads, writes = self._at(index), list(map(_as_bytes, reads)), list(map(_as_bytes, writes))
        sources = [at.like(piece, f"source {number}") for number, piece in enumerate(reads)]
        targets = [at.like(piece, f"target {number}") for number, piece in enumerate(writes)]
        start = prepare(
            actor.kind,
            task,
            self._rank,
            -1 if actor.rendezvous is None else actor.rendezvous,
            self._transport if at.on_device else self._transport.of_host,
            sources[0] if sources else None,
            targets[0] if targets else None,
            at.scratch,
        )
        before = [pair for pair in zip(reads, sources, strict=True) if pair[0] is not pair[1]]
        after = [pair for pair in zip(targets, writes, strict=True) if pair[0] is not pair[1]]
        if before or after:
            start = at.staged(start, before, after)
        if at.on_device and self.is_host(index):
            start = at.waited_for(start)
        return lambda number: start()

    def _bucket(self, index: int, actor: Actor, task: BoxingTask, reads: Sequence[Array]) -> Run:
        """The registers of a row as one array; those that do not lie so are packed for it."""
        rows = [[self._registers.joined(row)] for row in neighbours(actor)]
        if not task.members:
            return self._boxing(index, actor, task, *rows)
        at = self._at(index)
        sources = [at.like(piece, f"source {number}") for number, piece in enumerate(reads)]
        before = [pair for pair in zip(reads, sources, strict=True) if pair[0] is not pair[1]]
        me = task.group.index(self._rank)
        ((_, size),) = task.source_boxes[me]
        packed = at.scratch.get("packed", (size,), sources[0].dtype)
        run, copies, begin = self._boxing(index, actor, task, [packed], *rows), [], 0
        for rank in range(len(task.group)):
            for member, source in zip(task.members, sources, strict=True):
                piece = piece_of(source, member.target_boxes[rank], member.source_boxes[me])
                copies.append((packed[begin : begin + piece.size].reshape(piece.shape), piece))
                begin += piece.size

        def act(number: int) -> Requests | None:
            at.move(before)
            for into, piece in copies:
                at.scratch.xp.copyto(into, piece)
            return run(number)

        return act

    def _reduce_nodes(
        self, index: int, actor: Actor, task: BoxingTask, reads: Sequence[Array], writes: Sequence[Array]
    ) -> Run:
        """A reduction of several sums of each rank."""
        rows = neighbours(actor)
        target = self._registers.joined(rows[-1]) if rows else writes[0]
        sums, number = present(self._tree_sums, "sums in one tree"), present(actor.rendezvous, "a rendezvous")
        return sums.reduce(actor, task, number, self._transport, reads, target, self._staging[index])

    def _at(self, index: int) -> _Place:
        """Where the pieces of a boxing act have to be."""
        on_device = self._on_device(index)
        return _Place(self._kernels, (self._workspaces if on_device else self._staging)[index], on_device)

    def _meet(self, rendezvous: int) -> Run:
        """Members without a task meet by one byte from each to each."""
        group: Group = tuple(self._program.actors[member].rank for member in self._members[rendezvous])
        me, xp = group.index(self._rank), self._kernels.xp if self._transport.in_stream_order else np
        send = Parcel(None if i == me else xp.zeros(1, "uint8") for i in range(len(group)))
        receive = Parcel(None if i == me else xp.zeros(1, "uint8") for i in range(len(group)))
        exchange = (self._transport if self._transport.in_stream_order else self._transport.of_host).exchange
        return lambda number: _one(exchange(group, rendezvous, send, receive))


_NO_SCRATCH = ScratchSection((0, 0), (0, 0))
_LOAD_BUFFERS = 2
"""Of a loader, where the device has memory of its own: the host fills one while the device takes the other."""

_Moves = Sequence[tuple[Array, Array]]
"""(from, to) pairs, of which one is in the host's memory and the other on the device."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The memory, `on_device` or of the host, that a boxing act works in; what lies elsewhere is copied."""

    kernels: Kernels
    scratch: Scratch
    on_device: bool

    def like(self, piece: Array, name: str) -> Array:
        """A piece if it is here, else memory for it."""
        if _in_host(piece) is not self.on_device:
            return piece
        if self.on_device:
            return self.scratch.get(name, piece.shape, piece.dtype)
        return host_piece(self.kernels, piece)

    def move(self, pieces: _Moves) -> None:
        """Copy between host and device; the host's own acts wait for it."""
        for source, target in pieces:
            if _in_host(source):
                self.kernels.upload(memory(source), memory(target))
            else:
                self.kernels.download(memory(source), memory(target))
        if pieces and not self.on_device:
            self.kernels.wait()

    def staged(self, start: Start, before: _Moves, after: _Moves) -> Start:
        """A boxing act with copies before and after it."""

        def act() -> Requests:
            self.move(before)
            yield from start()
            self.move(after)

        return act

    def waited_for(self, start: Start) -> Start:
        """A boxing act that is over when the device has done what it was given in it."""

        def act() -> Requests:
            yield from start()
            self.kernels.wait()

        return act


def host_piece(kernels: Kernels, piece: Array) -> Array:
    """A host array, or host `Rows`, like a piece on the device, to stage transfers through."""
    if isinstance(piece, Rows):
        return Rows(np, kernels.host_like(piece.raw), piece.spec, piece.box)
    return kernels.host_like(piece)


def memory(piece: Array) -> Array:
    """What is copied to copy a piece."""
    return piece.raw if isinstance(piece, Rows) else piece


def _as_bytes(piece: Array) -> Array:
    """Codes of eight bits as what is moved of them: devices have no kernels that copy parts of such arrays."""
    return piece if isinstance(piece, Rows) or piece.dtype.itemsize > 1 else piece.view("uint8")


def _in_host(piece: Array) -> bool:
    """Whether transports can move a piece as it is."""
    return isinstance(memory(piece), np.ndarray)


def _nothing(number: int) -> None:
    """The act of an actor that only passes credits on."""


def _one(request: PendingTransfer) -> Iterator[PendingTransfer]:
    yield request
