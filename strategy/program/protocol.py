"""The actor protocol: credits, and nothing else, decide who may act. A state machine without I/O.

An actor may act when every register that it reads holds the piece it needs and every register that it writes
has the block for its next piece free. Acting returns the pieces read to their producers and hands the pieces
written to their consumers. Pipelines, loaders, collectives and back-pressure are all this one rule (OneFlow's
actors, Yuan et al. 2021, section 4; the credits make a marked graph, Commoner et al. 1971).

A clock drives it: `issue` when an act starts, `done` when it has ended. Piece p of a register lives in block
p modulo its number of blocks, so which block an act uses does not depend on timing. In a static stream only the
actor at the head of the sequence may act; then nothing that one actor does can disable another, so whether a
program hangs does not depend on timing either, and `admit` decides it by running the program once, untimed.

A device is handed acts before it has done those that they follow. An act that is *issued* to one passes its credits
on at once (`issued`), for whatever else is issued there comes after it by the order of a stream or by an event; actors
of the *host* and other ranks need it *done*. Where acts run as they are issued, both coincide, and `done` says both.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from strategy.base.errors import DeadlockError, PlanError
from strategy.program.program import Program

FOREVER = 2**62
"""Pieces of a register that holds one from the start and that nobody writes: what is frozen serves every act."""


Blocks = tuple[tuple[int, ...], tuple[int, ...]]
"""Of an act: the block that it uses of each read, and of each write."""


class Act(NamedTuple):
    """The `number`-th act of `actor` since the start, with the block that it uses of each read and each write."""

    actor: int
    stream: int
    number: int
    read_blocks: tuple[int, ...]
    write_blocks: tuple[int, ...]


class _Read(NamedTuple):
    """A read port: `slot` is this consumer's position in the register's returned counts."""

    register: int
    slot: int
    acts_per_piece: int
    blocks: int


class _Write(NamedTuple):
    """A write port."""

    register: int
    acts_per_piece: int
    blocks: int
    initial: int


class Protocol:
    """Credits of the actors of `ranks` (all ranks by default) over `steps` steps.

    Counters, all monotone: pieces published per register, pieces returned per (register, consumer), acts issued, passed
    on and done per actor. A register's block for piece p is free once every consumer has returned piece p - blocks.

    `host` are the actors that the host itself is, beside a device: their credits are acts that are done.
    """

    def __init__(
        self, program: Program, *, steps: int, ranks: Iterable[int] | None = None, host: Collection[int] = ()
    ) -> None:
        mine = set(range(program.ranks) if ranks is None else ranks)
        self.program = program
        self.steps = steps
        self.published = [register.initial for register in program.registers]
        self.returned: list[list[int]] = [[] for _ in program.registers]
        self.acts_issued = [0] * len(program.actors)
        self._passed_on = [0] * len(program.actors)
        self.acts_done = [0] * len(program.actors)
        self._host = frozenset(host)
        self._producer: list[int | None] = [None] * len(program.registers)
        self._consumers: list[list[int]] = [[] for _ in program.registers]
        self._reads: list[tuple[_Read, ...]] = [()] * len(program.actors)
        self._writes: list[tuple[_Write, ...]] = [()] * len(program.actors)
        own = [
            index for index, actor in enumerate(program.actors) if actor.rank in mine
        ]  # others' registers are theirs
        for index in own:
            reads, writes = program.actors[index].reads, program.actors[index].writes
            self._reads[index] = tuple([self._connect_read(index, p.register, p.acts_per_piece) for p in reads])
            self._writes[index] = tuple([self._connect_write(index, p.register, p.acts_per_piece) for p in writes])
        for index, register in enumerate(program.registers):
            if register.initial and self._producer[index] is None:
                self.published[index] = FOREVER
        self._turn = [0] * len(program.actors)
        """By actor, the acts after which the blocks are the same again; 0 before it is asked for."""
        self._blocks: list[dict[int, Blocks]] = [{} for _ in program.actors]
        """By actor, those of the acts of one turn, as they are asked for."""
        self.streams = [i for i, stream in enumerate(program.streams) if stream.rank in mine]
        self._position = [0] * len(program.streams)
        self._busy = [False] * len(program.streams)
        self._per_step = [actor.acts_per_step for actor in program.actors]
        self._length = [0 if stream.dynamic else len(stream.sequence) for stream in program.streams]
        self._stream_of = streams_of_actors(program)
        self._acts_in_step = sum(self._per_step[a] for i in self.streams for a in set(program.streams[i].sequence))
        self.remaining = self._acts_in_step * steps
        self._wakes: list[tuple[int, ...]] = [()] * len(program.actors)
        for index in own:
            self._wakes[index] = self._woken_by(index)

    def extend(self, steps: int) -> None:
        """Let every actor go on for `steps` more steps."""
        self.steps += steps
        self.remaining += self._acts_in_step * steps

    def _connect_read(self, actor: int, register: int, acts_per_piece: int) -> _Read:
        self._consumers[register].append(actor)
        self.returned[register].append(0)
        blocks = self.program.registers[register].blocks
        return _Read(register, len(self.returned[register]) - 1, acts_per_piece, blocks)

    def _connect_write(self, actor: int, register: int, acts_per_piece: int) -> _Write:
        if self._producer[register] is not None:
            name = self.program.registers[register].name
            raise PlanError("a register has two producers", where=name, got=self.program.actors[actor].name)
        self._producer[register] = actor
        found = self.program.registers[register]
        return _Write(register, acts_per_piece, found.blocks, found.initial)

    def _woken_by(self, actor: int) -> tuple[int, ...]:
        """Streams in which the end of an act of `actor` may let something act."""
        touched = {self._stream_of[actor]}
        for write in self._writes[actor]:
            touched.update(self._stream_of[consumer] for consumer in self._consumers[write.register])
        for read in self._reads[actor]:
            producer = self._producer[read.register]
            if producer is not None:
                touched.add(self._stream_of[producer])
        return tuple(sorted(touched))

    def may_act(self, actor: int) -> bool:
        """Whether the credits of `actor` suffice now (its place in the stream aside)."""
        number = self.acts_issued[actor]
        if number >= self._per_step[actor] * self.steps:
            return False
        for register, _, share, _ in self._reads[actor]:
            if self.published[register] <= number // share:
                return False
        for register, share, blocks, initial in self._writes[actor]:
            if number % share == 0:
                oldest = number // share + initial - blocks
                if oldest >= 0 and min(self.returned[register], default=oldest + 1) <= oldest:
                    return False
        return actor not in self._host or all(self.acts_done[other] > last for other, last in self.follows(actor))

    def follows(self, actor: int) -> Iterator[tuple[int, int]]:
        """The acts, (actor, number), whose credits the next act of `actor` needs.

        They are those that have written what it reads, and the last to read what lay in the blocks that it begins.
        """
        number = self.acts_issued[actor]
        for read in self._reads[actor]:
            piece, producer = number // read.acts_per_piece, self._producer[read.register]
            written = piece - self.program.registers[read.register].initial
            if producer is not None and written >= 0:
                yield producer, (written + 1) * _share(self._writes[producer], read.register) - 1
        for write in self._writes[actor]:
            piece, into = divmod(number, write.acts_per_piece)
            oldest = piece + write.initial - write.blocks
            if into == 0 and oldest >= 0:
                for consumer in self._consumers[write.register]:
                    yield consumer, (oldest + 1) * _share(self._reads[consumer], write.register) - 1

    def head(self, stream: int) -> int | None:
        """The actor of an idle `stream` that may act next, or None."""
        if self._busy[stream]:
            return None
        found = self.program.streams[stream]
        if not found.dynamic:
            actor = self.expected(stream)
            return actor if actor is not None and self.may_act(actor) else None
        ready = [actor for actor in found.sequence if self.may_act(actor)]
        return max(ready, key=lambda actor: (self.program.actors[actor].priority, -actor)) if ready else None

    def expected(self, stream: int) -> int | None:
        """The actor at the head of a static stream, ready or not; None at the end or when the stream is dynamic."""
        sequence = self.program.streams[stream].sequence
        position = self._position[stream]
        return sequence[position % len(sequence)] if position < self._length[stream] * self.steps else None

    def issue(self, stream: int, actor: int) -> Act:
        """Start the next act of `actor`, which `head(stream)` named."""
        number = self.acts_issued[actor]
        self.acts_issued[actor] = number + 1
        self._busy[stream] = True
        return Act(actor, stream, number, *self.blocks_of(actor, number))

    def blocks_of(self, actor: int, number: int) -> Blocks:
        """The blocks that an act reads, and those that it writes."""
        place = number % (self._turn[actor] or self._find_turn(actor))
        known = self._blocks[actor]
        found = known.get(place)
        if found is None:
            reads = tuple([place // r.acts_per_piece % r.blocks for r in self._reads[actor]])
            writes = tuple([(place // w.acts_per_piece + w.initial) % w.blocks for w in self._writes[actor]])
            found = known[place] = reads, writes
        return found

    def _find_turn(self, actor: int) -> int:
        ports = [(read.acts_per_piece, read.blocks) for read in self._reads[actor]]
        ports += [(write.acts_per_piece, write.blocks) for write in self._writes[actor]]
        self._turn[actor] = math.lcm(*(share * blocks for share, blocks in ports if blocks > 1))
        return self._turn[actor]

    def choices_of_blocks(self, actor: int) -> Iterator[Blocks]:
        """Every pair of `blocks_of` that acts of `actor` ever have."""
        seen = set()
        for number in range(self._find_turn(actor)):
            blocks = self.blocks_of(actor, number)
            if blocks not in seen:
                seen.add(blocks)
                yield blocks

    def issued(self, act: Act) -> tuple[int, ...]:
        """Pass on the credits of an act: publish what it wrote, return what it read.

        Gives the streams that may now go on, those of the host's actors aside.
        """
        actor, stream, number, _, _ = act
        following = self._passed_on[actor] = number + 1
        for register, share, _, _ in self._writes[actor]:
            if following % share == 0:
                self.published[register] += 1
        for register, slot, share, _ in self._reads[actor]:
            if following % share == 0:
                self.returned[register][slot] += 1
        self._position[stream] += 1
        self._busy[stream] = False
        return self._wakes[actor]

    def done(self, act: Act) -> tuple[int, ...]:
        """End an act, and pass on its credits if that was not yet done. Gives the streams that may now go on."""
        actor = act.actor
        if self._passed_on[actor] <= act.number:
            self.issued(act)
        self.acts_done[actor] += 1
        self.remaining -= 1
        return self._wakes[actor]

    def is_busy(self, stream: int) -> bool:
        """Whether an act of the stream has been issued whose credits are not passed on."""
        return self._busy[stream]

    def stream_of(self, actor: int) -> int:
        """The stream in which `actor` stands."""
        return self._stream_of[actor]

    def unfinished(self, actor: int) -> bool:
        """Whether `actor` still has acts to issue."""
        return self.acts_issued[actor] < self._per_step[actor] * self.steps

    @property
    def finished(self) -> bool:
        """Whether every act of every step has been done."""
        return self.remaining == 0

    def waits_for(self, actor: int) -> Iterator[tuple[int, str]]:
        """Actors that must act before the credits of `actor` suffice, each with the reason."""
        number = self.acts_issued[actor]
        names = self.program.registers
        for read in self._reads[actor]:
            producer = self._producer[read.register]
            if producer is not None and self.published[read.register] <= number // read.acts_per_piece:
                yield producer, f"needs piece {number // read.acts_per_piece} of {names[read.register].name}"
        for write in self._writes[actor]:
            piece, into = divmod(number, write.acts_per_piece)
            oldest = piece + write.initial - write.blocks
            if into == 0 and oldest >= 0:
                for consumer, count in zip(self._consumers[write.register], self.returned[write.register], strict=True):
                    if count <= oldest:
                        yield consumer, f"needs a free block of {names[write.register].name} (has {write.blocks})"


def _share(ports: Iterable[_Read | _Write], register: int) -> int:
    """How many acts share a piece of a register; the most, where an actor reads it by several ports."""
    return max(port.acts_per_piece for port in ports if port.register == register)


def streams_of_actors(program: Program) -> list[int]:
    """The stream in which every actor stands.

    Raises:
        PlanError: an actor stands in none, or in two.
    """
    stream_of = [-1] * len(program.actors)
    for index, stream in enumerate(program.streams):
        for actor in set(stream.sequence):
            if stream_of[actor] not in (-1, index):
                raise PlanError("an actor stands in two streams", where=program.actors[actor].name)
            stream_of[actor] = index
    for actor, found in enumerate(stream_of):
        if found == -1:
            raise PlanError("an actor stands in no stream", where=program.actors[actor].name)
    return stream_of


def rendezvous_members(program: Program) -> dict[int, tuple[int, ...]]:
    """Rendezvous number -> its member actors, by rank."""
    members: dict[int, list[int]] = {}
    for index, actor in enumerate(program.actors):
        if actor.rendezvous is not None:
            members.setdefault(actor.rendezvous, []).append(index)
    return {number: tuple(found) for number, found in sorted(members.items())}


def admit(program: Program, *, steps: int = 2) -> None:
    """Refuse a program that would hang.

    One step, run untimed, decides it: after a full step every counter has moved by one step's worth (`_check_rates`
    sees to that), so a program that finishes a step finishes any number. Two are run, as steps may overlap.

    Raises:
        DeadlockError: naming the cycle of waits.
        PlanError: an actor, stream or register is inconsistent.
    """
    check_consistent(program)
    for _ in replay(program, steps=steps):
        pass


def replay(program: Program, *, steps: int) -> Iterator[tuple[Act, ...]]:
    """The acts of a consistent program in an order that its credits allow, streams taking turns.

    Those of a rendezvous come together.

    Raises:
        DeadlockError: at the end of what the credits allow, naming the cycle of waits.
    """
    protocol = Protocol(program, steps=steps)
    members = rendezvous_members(program)
    agenda = deque(protocol.streams)
    queued = set(agenda)
    while agenda:
        stream = agenda.popleft()
        queued.discard(stream)
        ready = protocol.head(stream)
        acts = () if ready is None else _issue_together(protocol, members, stream, ready)
        if not acts:
            continue
        woken = {touched for act in acts for touched in protocol.done(act)}
        for touched in sorted(woken - queued):
            agenda.append(touched)
            queued.add(touched)
        yield acts
    if not protocol.finished:
        raise DeadlockError(find_cycle(protocol, members))


def check_consistent(program: Program) -> None:
    """Refuse a program whose actors, streams and registers do not go together.

    Raises:
        PlanError: naming the one that does not.
    """
    _check_streams(program)
    _check_rates(program)


def _check_streams(program: Program) -> None:
    """An actor stands as often in its stream as it acts, on its own rank, and meets others in static streams only.

    In a dynamic stream, which of two rendezvous a rank waits in would depend on timing, and so would a hang.
    """
    for stream in program.streams:
        for actor, count in sorted(Counter(stream.sequence).items()):
            found = program.actors[actor]
            expected = 1 if stream.dynamic else found.acts_per_step
            if count != expected:
                raise PlanError(
                    "an actor stands in its stream's sequence another number of times than it acts",
                    where=found.name,
                    got=count,
                    expected=str(expected),
                )
            if found.rank != stream.rank:
                raise PlanError("an actor of another rank", where=f"stream {stream.name}", got=found.name)
            if stream.dynamic and found.rendezvous is not None:
                raise PlanError("a rendezvous in a dynamic stream", where=stream.name, got=found.name)
    for number, actors in rendezvous_members(program).items():
        acts = {program.actors[actor].acts_per_step for actor in actors}
        ranks = {program.actors[actor].rank for actor in actors}
        if len(acts) > 1 or len(ranks) < len(actors):
            raise PlanError(
                "the members of a rendezvous do not match",
                where=f"rendezvous {number}",
                got=[program.actors[actor].name for actor in actors],
                expected="one actor per rank, all with the same acts_per_step",
            )


def _check_rates(program: Program) -> None:
    """Per step as many whole pieces of a register are written as each of its consumers reads, on one rank."""
    pieces: list[int | None] = [None] * len(program.registers)
    differ: set[int] = set()
    for actor in program.actors:
        acts, rank = actor.acts_per_step, actor.rank
        for port in (*actor.reads, *actor.writes):
            register = program.registers[port.register]
            count, rest = divmod(acts, port.acts_per_piece)
            if rest or register.rank != rank or not 0 <= register.initial <= register.blocks >= 1:
                raise PlanError(
                    "an actor cannot use this register so",
                    where=actor.name,
                    got=f"{register.name}: rank {register.rank}, {register.initial} of {register.blocks} blocks full",
                    expected=f"rank {actor.rank}, acts_per_piece dividing {actor.acts_per_step}, initial <= blocks",
                )
            known = pieces[port.register]
            if known is None:
                pieces[port.register] = count
            elif known != count:
                differ.add(port.register)
    if differ:
        index = min(differ)
        ports = ((a, port) for a in program.actors for port in (*a.reads, *a.writes) if port.register == index)
        raise PlanError(
            "producer and consumers differ in pieces per step",
            where=program.registers[index].name,
            got=[(actor.name, actor.acts_per_step // port.acts_per_piece) for actor, port in ports],
            expected="the same",
        )


def _issue_together(
    protocol: Protocol, members: dict[int, tuple[int, ...]], stream: int, actor: int
) -> tuple[Act, ...]:
    """Issue `actor`, with all its peers if it is a rendezvous; nothing if a peer is not ready."""
    number = protocol.program.actors[actor].rendezvous
    if number is None:
        return (protocol.issue(stream, actor),)
    streams = [protocol.stream_of(peer) for peer in members[number]]
    if any(protocol.head(s) != peer for s, peer in zip(streams, members[number], strict=True)):
        return ()
    return tuple(protocol.issue(s, peer) for s, peer in zip(streams, members[number], strict=True))


def find_cycle(protocol: Protocol, members: dict[int, tuple[int, ...]]) -> list[str]:
    """The cycle of waits in a protocol that can go no further, one line per wait."""
    names = [f"{actor.name} (rank {actor.rank})" for actor in protocol.program.actors]
    start = next(a for i in protocol.streams for a in protocol.program.streams[i].sequence if protocol.unfinished(a))
    path: list[int] = []
    reasons: list[str] = []
    actor = start
    while actor not in path:
        path.append(actor)
        actor, reason = _first_wait(protocol, members, actor)
        reasons.append(reason)
    first = path.index(actor)
    return [
        f"{names[waiting]} waits for {names[other]}: {reason}"
        for waiting, other, reason in zip(path[first:], [*path[first + 1 :], actor], reasons[first:], strict=True)
    ]


def _first_wait(protocol: Protocol, members: dict[int, tuple[int, ...]], actor: int) -> tuple[int, str]:
    stream = protocol.stream_of(actor)
    expected = protocol.expected(stream)
    if expected is not None and expected != actor:
        return expected, f"comes before it in stream {protocol.program.streams[stream].name}"
    for other, reason in protocol.waits_for(actor):
        return other, reason
    number = protocol.program.actors[actor].rendezvous
    for peer in members.get(number, ()) if number is not None else ():
        if peer != actor and protocol.head(protocol.stream_of(peer)) != peer:
            return peer, f"meets it in rendezvous {number}"
    return actor, "can never act"
