"""Program: what every rank does, as actors that read and write bounded registers.

This is the value that the simulator runs under a virtual clock and the executor under the wall clock. All
registers are local to one rank; ranks meet only in *rendezvous* acts (a collective, or the two ends of a
transfer), each a member actor per rank under one number. One step of every static stream is a fixed sequence.

Rates. An actor acts `acts_per_step` times per step. A port says how many consecutive acts share one piece:

    a micro-batch actor reading a parameter        Port(weight, acts_per_piece=m)   one piece serves m acts
    an accumulator writing a step's gradient       Port(total, acts_per_piece=m)    m acts fill one piece

State (parameters, optimiser moments) is a register with `initial=1`: its first piece is there before the first
act, and its updater, holding the only block once all readers have returned it, rewrites it in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from strategy.sbp.placement import Space
from strategy.sbp.sbp import Reduce
from strategy.sbp.tensor import Box, DType, Ragged, Shape, TensorSpec, is_empty

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """What one act costs: a fixed time, then bytes through each resource that it shares with other acts.

    The act ends when its latency has passed and every demand has been served.
    """

    latency_ns: int = 0
    demands: tuple[tuple[str, int], ...] = ()


def time_alone_ns(nbytes: int, bytes_per_s: float) -> int:
    """Time that `nbytes` take through a resource that nothing else uses, rounded up."""
    return -(-nbytes * 10**9 // round(bytes_per_s))


@dataclass(frozen=True, slots=True)
class Register:
    """`blocks` buffers of one shape on one rank; piece p of the value occupies block p modulo `blocks`.

    `offsets` say where each block begins in the memory of its rank, in bytes, once that is laid out
    (`lowering.memory`). State has none: each of its blocks is memory of its own, which several programs may share.
    Blocks of a `ragged` tensor have room for `most_rows`; `box` then says which piece they hold.

    They are in the memory of the rank's device, or of its host.
    """

    name: str
    rank: int
    shape: Shape
    dtype: DType
    blocks: int = 1
    initial: int = 0
    ragged: Ragged | None = None
    box: Box = ()
    offsets: tuple[int, ...] = ()
    space: Space = Space.DEVICE

    @property
    def spec(self) -> TensorSpec:
        """Of the piece that a block holds."""
        return TensorSpec(self.shape, self.dtype, self.ragged)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block; where the tensor is ragged, with all its room."""
        if self.ragged is not None:
            return self.spec.nbytes
        size = self.dtype.nbytes
        for dim in self.shape:
            size *= dim
        return size

    def at(self, offsets: tuple[int, ...]) -> Register:
        """The same with its blocks, as many as there are offsets, in their places.

        `replace` takes several times as long, which counts for many.
        """
        places, blocks = (self.ragged, self.box, offsets, self.space), len(offsets) or self.blocks
        return Register(self.name, self.rank, self.shape, self.dtype, blocks, self.initial, *places)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.block_nbytes


@dataclass(frozen=True, slots=True)
class Port:
    """A use of a register: `acts_per_piece` consecutive acts of the actor share one piece."""

    register: int
    acts_per_piece: int = 1


class ActKind(StrEnum):
    """What an actor does; also the colour of its bar in a timeline."""

    COMPUTE = "compute"
    LOAD = "load"
    SLICE = "slice"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_TO_ALL = "all_to_all"
    ROTATE = "rotate"
    TRANSFER = "transfer"
    COPY = "copy"

    @property
    def is_communication(self) -> bool:
        """Whether ranks meet in it."""
        return self not in (ActKind.COMPUTE, ActKind.LOAD, ActKind.SLICE, ActKind.COPY)

    @property
    def waits_outside(self) -> bool:
        """Whether it waits for data, for another stage, or for a link to the host."""
        return self in (ActKind.LOAD, ActKind.TRANSFER, ActKind.COPY)

    @property
    def reduces(self) -> bool:
        """Whether terms of ranks are combined in it: what gradients are exchanged by."""
        return self in (ActKind.ALL_REDUCE, ActKind.REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class OpTask:
    """Run a graph op on local arrays.

    `inputs` and `outputs` index the actor's ports, reads before writes; `outputs` are those of the op's outputs, then
    those of the variables that it updates.

    `input_boxes` and `output_boxes` say which piece of each logical tensor the local arrays hold. `in_place` are
    positions of inputs: the first output may be written over any of them.
    """

    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_boxes: tuple[Box, ...]
    output_boxes: tuple[Box, ...]
    in_place: tuple[int, ...] = ()

    @property
    def idle(self) -> bool:
        """Whether another rank owns the op: whatever has dims is empty here."""
        found = False
        for box in (*self.input_boxes, *self.output_boxes):
            if box:
                if not is_empty(box):
                    return False
                found = True
        return found


@dataclass(frozen=True, slots=True)
class BoxingTask:
    """One rank's part of a boxing step along one mesh axis or several.

    `group` are the ranks of those axes in order. `source_boxes[i]` and `target_boxes[i]` are the pieces that rank
    i of the group holds before and after, in logical indices. `reduce` says how partial terms combine. `nodes` are the
    ranks of the group by node where the act goes inside nodes and between them (see `levels`).

    Where an act takes several registers as one flat tensor and has to pack them, `members` are the tasks that it
    stands for, one per register that it reads: what it gives to a rank are the members' pieces for that, in order.
    """

    group: tuple[int, ...]
    source_boxes: tuple[Box, ...]
    target_boxes: tuple[Box, ...]
    reduce: Reduce = Reduce.SUM
    nodes: tuple[tuple[int, ...], ...] = ()
    members: tuple[BoxingTask, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """A piece of a tensor that one rank sends to another (or keeps, where both are the same rank)."""

    source: int
    target: int
    box: Box


@dataclass(frozen=True, slots=True)
class TransferTask:
    """Point-to-point messages between placements; this rank's register holds `box` (its source or its target)."""

    messages: tuple[Message, ...]
    source_boxes: Mapping[int, Box]
    target_boxes: Mapping[int, Box]


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Read this rank's part `box` of the micro-batch of one graph input; all inputs of a loader share one act.

    `absent` names the inputs that are loaded as terms and whose term is with another rank: this one holds the neutral
    element of that reduction instead. `number` tells loaders of a rank apart that load the same, such as an input that
    is wanted whole and as terms of which this rank has the one that counts: each is ahead as far as it is.
    """

    inputs: tuple[str, ...]
    boxes: tuple[Box, ...]
    absent: Mapping[str, Reduce] = field(default_factory=dict)
    number: int = 0


Task = OpTask | BoxingTask | TransferTask | LoadTask


@dataclass(frozen=True, slots=True)
class Actor:
    """One rank's agent for one op, boxing step, transfer or loader.

    `task` None is an actor that only passes credits on (tests and schedules under study use it).
    """

    name: str
    rank: int
    kind: ActKind
    reads: tuple[Port, ...] = ()
    writes: tuple[Port, ...] = ()
    acts_per_step: int = 1
    rendezvous: int | None = None
    priority: int = 0
    work: Work = Work()
    task: Task | None = None


def neighbours(actor: Actor) -> tuple[tuple[int, ...], ...]:
    """Rows of registers whose blocks lie next to each other: what a collective takes as one without packing."""
    if not isinstance(actor.task, BoxingTask) or len(actor.reads) < 2:
        return ()
    rows = (actor.writes,) if actor.task.members else (actor.reads, actor.writes)
    return tuple(tuple(port.register for port in ports) for ports in rows)


@dataclass(frozen=True, slots=True)
class Stream:
    """Acts of one rank that happen one after another.

    Static: `sequence` lists the actors of one step in order (an actor as often as it acts). Dynamic: `sequence`
    lists its actors once, and of those that are ready the one of highest priority acts.
    """

    rank: int
    name: str
    sequence: tuple[int, ...]
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """Actors, registers and streams of all ranks. `resources` maps a shared resource to its bytes per second.

    A *folded* program has those of some ranks, which do what all others do (`lowering.folding`): `alike` names, by
    rank, the one that stands for it, `sent_bytes_per_step` what it sends itself. Both are empty where all are there.
    """

    ranks: int
    registers: tuple[Register, ...]
    actors: tuple[Actor, ...]
    streams: tuple[Stream, ...]
    resources: Mapping[str, float] = field(default_factory=dict)
    num_micro_batches: int = 1
    tokens_per_step: int = 0
    model_flop_per_step: int = 0
    hardware_flop_per_step: int = 0
    alike: tuple[int, ...] = ()
    sent_bytes_per_step: tuple[int, ...] = ()

    def of_all_ranks(self, found: Sequence[T]) -> tuple[T, ...]:
        """What every rank has, where `found` is right for the ranks that are there."""
        return tuple(found[rank] for rank in self.alike) if self.alike else tuple(found)
