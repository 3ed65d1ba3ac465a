"""An independent credit monitor: accepts a trace only if the rules of `strategy.program.program` allow it.

It keeps its own tokens (which piece each block holds, who has still to return it) and moves them at every start
and end in order of time. It shares no code with the protocol, so that a mistake there cannot hide here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strategy.program.program import Program
from strategy.program.timeline import ActRecord


@dataclass
class _Block:
    piece: int | None = None
    readable: bool = False
    to_return: set[tuple[int, int]] = field(default_factory=set)
    """(actor, read port) of those that have still to return the piece."""


def check_trace(program: Program, records: Sequence[ActRecord]) -> list[str]:
    """Everything in the trace that the program does not allow; empty if it is a possible run.

    Records of one stream are given in the order in which they ran. Clocks of different ranks are compared only
    where ranks meet: the members of a rendezvous must have an instant in common.
    """
    problems = _check_streams(program, records)
    problems += _check_rendezvous(program, records)
    for rank in range(program.ranks):
        problems += _Tokens(program, rank).replay([r for r in records if program.actors[r.actor].rank == rank])
    return problems


class _Tokens:
    """The blocks of one rank."""

    def __init__(self, program: Program, rank: int) -> None:
        self.program = program
        self.problems: list[str] = []
        self.readers: dict[int, set[tuple[int, int]]] = {}
        for index, actor in enumerate(program.actors):
            for position, port in enumerate(actor.reads):
                self.readers.setdefault(port.register, set()).add((index, position))
        self.blocks: dict[int, list[_Block]] = {}
        for index, register in enumerate(program.registers):
            if register.rank == rank:
                self.blocks[index] = [_Block() for _ in range(register.blocks)]
                for piece in range(register.initial):
                    filled = _Block(piece, readable=True, to_return=set(self.readers.get(index, ())))
                    self.blocks[index][piece % register.blocks] = filled

    def replay(self, records: Sequence[ActRecord]) -> list[str]:
        """Move the tokens at every instant: first the ends, then acts of no length, then the starts."""
        instants = sorted({time for record in records for time in (record.start_ns, record.end_ns)})
        ends: dict[int, list[ActRecord]] = {time: [] for time in instants}
        starts: dict[int, list[ActRecord]] = {time: [] for time in instants}
        points: dict[int, list[ActRecord]] = {time: [] for time in instants}
        for record in records:
            if record.start_ns == record.end_ns:
                points[record.start_ns].append(record)
            else:
                starts[record.start_ns].append(record)
                ends[record.end_ns].append(record)
        for time in instants:
            for record in ends[time]:
                self.end(record)
            self.replay_points(points[time])
            for record in starts[time]:
                self.problems += self.faults(record)
                self.start(record)
        return self.problems

    def replay_points(self, records: list[ActRecord]) -> None:
        """Acts that begin and end at one instant, in any order that the credits allow."""
        waiting = list(records)
        while waiting:
            possible = next((record for record in waiting if not self.faults(record)), waiting[0])
            self.problems += self.faults(possible)
            self.start(possible)
            self.end(possible)
            waiting.remove(possible)

    def faults(self, record: ActRecord) -> list[str]:
        """Why this act may not start now."""
        actor = self.program.actors[record.actor]
        who = f"{actor.name} (rank {actor.rank}) act {record.number} at {record.start_ns} ns"
        found = []
        for position, port in enumerate(actor.reads):
            register = self.program.registers[port.register]
            piece = record.number // port.acts_per_piece
            block = self.blocks[port.register][piece % register.blocks]
            if record.read_blocks[position] != piece % register.blocks:
                found.append(f"{who}: wrong block {record.read_blocks[position]} of {register.name}")
            if block.piece != piece or not block.readable or (record.actor, position) not in block.to_return:
                found.append(f"{who}: read a missing piece, {piece} of {register.name}")
        for position, port in enumerate(actor.writes):
            register = self.program.registers[port.register]
            piece = record.number // port.acts_per_piece + register.initial
            block = self.blocks[port.register][piece % register.blocks]
            if record.write_blocks[position] != piece % register.blocks:
                found.append(f"{who}: wrong block {record.write_blocks[position]} of {register.name}")
            fresh = record.number % port.acts_per_piece == 0
            if fresh and block.piece is not None:
                found.append(f"{who}: wrote an occupied block, {register.name} holds piece {block.piece}")
            if not fresh and block.piece != piece:
                found.append(f"{who}: went on with piece {piece} of {register.name}, which nothing began")
        return found

    def start(self, record: ActRecord) -> None:
        """Take the blocks that the act writes."""
        for port in self.program.actors[record.actor].writes:
            register = self.program.registers[port.register]
            piece = record.number // port.acts_per_piece + register.initial
            if record.number % port.acts_per_piece == 0:
                self.blocks[port.register][piece % register.blocks] = _Block(piece)

    def end(self, record: ActRecord) -> None:
        """Hand over what is complete, give back what is used up."""
        actor = self.program.actors[record.actor]
        for port in actor.writes:
            if record.number % port.acts_per_piece == port.acts_per_piece - 1:
                register = self.program.registers[port.register]
                piece = record.number // port.acts_per_piece + register.initial
                block = self.blocks[port.register][piece % register.blocks]
                block.readable = True
                block.to_return = set(self.readers.get(port.register, ()))
                self._free_if_returned(block)
        for position, port in enumerate(actor.reads):
            if record.number % port.acts_per_piece == port.acts_per_piece - 1:
                blocks = self.blocks[port.register]
                block = blocks[record.number // port.acts_per_piece % len(blocks)]
                block.to_return.discard((record.actor, position))
                self._free_if_returned(block)

    @staticmethod
    def _free_if_returned(block: _Block) -> None:
        if block.readable and not block.to_return:
            block.piece, block.readable = None, False


def _check_streams(program: Program, records: Sequence[ActRecord]) -> list[str]:
    problems = []
    place = {actor: index for index, stream in enumerate(program.streams) for actor in stream.sequence}
    acts = [0] * len(program.actors)
    position = [0] * len(program.streams)
    last_end_ns = [0] * len(program.streams)
    for record in records:
        stream = program.streams[record.stream]
        who = f"{program.actors[record.actor].name} act {record.number} at {record.start_ns} ns"
        if place[record.actor] != record.stream:
            problems.append(f"{who}: in a stream that is not its own, {stream.name}")
        if record.number != acts[record.actor]:
            problems.append(f"{who}: out of order, its act {acts[record.actor]} was due")
        acts[record.actor] = record.number + 1
        due = stream.sequence[position[record.stream] % len(stream.sequence)]
        if not stream.dynamic and due != record.actor:
            problems.append(f"{who}: out of order in stream {stream.name}, {program.actors[due].name} was due")
        position[record.stream] += 1
        if record.start_ns > record.end_ns or record.start_ns < last_end_ns[record.stream]:
            problems.append(f"{who}: overlap in stream {stream.name} of rank {stream.rank}")
        last_end_ns[record.stream] = max(last_end_ns[record.stream], record.end_ns)
    steps = {count / actor.acts_per_step for count, actor in zip(acts, program.actors, strict=True)}
    if len(steps) > 1 or not all(count.is_integer() for count in steps):
        problems.append(f"unfinished: actors did between {min(steps)} and {max(steps)} steps")
    return problems


def _check_rendezvous(program: Program, records: Sequence[ActRecord]) -> list[str]:
    meetings: dict[tuple[int, int], list[ActRecord]] = {}
    members: dict[int, int] = {}
    for actor in program.actors:
        if actor.rendezvous is not None:
            members[actor.rendezvous] = members.get(actor.rendezvous, 0) + 1
    for record in records:
        number = program.actors[record.actor].rendezvous
        if number is not None:
            meetings.setdefault((number, record.number), []).append(record)
    problems = []
    for (number, act), present in sorted(meetings.items()):
        if len(present) != members[number]:
            problems.append(f"rendezvous {number} act {act}: {len(present)} of {members[number]} members came")
        if max(record.start_ns for record in present) > min(record.end_ns for record in present):
            problems.append(f"rendezvous {number} act {act}: its members do not overlap")
    return problems
