"""DualPipe: the schedule of DeepSeek-V3 (2024, arXiv:2412.19437, section 3.2.1), for study: simulated, never run.

Half of the micro-batches enter at the first rank and half at the last, so every rank holds two stages, one of either
direction, and twice the parameters. Forward of one direction and backward of the other run as one act that hides their
messages. The order is that of DeepSeek's published code (github.com/deepseek-ai/DualPipe, step of dualpipe.py): seen
from either end, `near` is the direction that begins at this end.

    1   F near                     2   F near, F far             3   I far, W, F far
    4   F near & B far, F far & B near                           5   B far, F far & B near
    6   B far, B near, the later ones I                          7   W, I near              8   W

F forward, B backward, I backward without the gradients of weights, W those alone, & overlapped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from strategy.base.errors import InputError
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType


class Part(StrEnum):
    """What is done for one micro-batch on one stage."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Piece:
    """One part for one micro-batch of one direction: 0 enters at the first rank, 1 at the last."""

    part: Part
    direction: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Times:
    """Nanoseconds of one micro-batch on one stage: forward, backward with weights, weights alone, overlapped pair."""

    forward_ns: int
    backward_ns: int
    weight_ns: int
    overlapped_ns: int

    def of(self, act: Sequence[Piece]) -> int:
        """Of one act."""
        if len(act) > 1:
            return self.overlapped_ns
        times = {
            Part.FORWARD: self.forward_ns,
            Part.BACKWARD: self.backward_ns,
            Part.INPUT: self.backward_ns - self.weight_ns,
            Part.WEIGHT: self.weight_ns,
        }
        return times[act[0].part]


def dual_pipe_order(ranks: int, rank: int, num_micro_batches: int) -> list[tuple[Piece, ...]]:
    """The acts of one step on one rank, in order: pieces, or pairs of them that overlap.

    Raises:
        InputError: the ranks are not even, or the micro-batches fewer than two per rank or not even.
    """
    if ranks < 2 or ranks % 2:
        raise InputError("DualPipe pairs ranks from both ends", where="ranks", got=ranks, expected="an even number")
    if num_micro_batches % 2 or num_micro_batches < 2 * ranks:
        expected = f"an even number of at least {2 * ranks}"
        raise InputError("too few for two directions", where="micro-batches", got=num_micro_batches, expected=expected)
    return list(_Order(rank >= ranks // 2).acts(ranks, min(rank, ranks - 1 - rank), num_micro_batches // 2))


@dataclass(slots=True)
class _Order:
    """Numbers the micro-batches of either direction, and keeps the gradients of weights that are put off."""

    from_last: bool
    done: dict[tuple[bool, int], int] = field(default_factory=dict)
    put_off: deque[Piece] = field(default_factory=deque)

    def acts(self, ranks: int, depth: int, each: int) -> Iterator[tuple[Piece, ...]]:
        """Of the rank that has `depth` ranks between itself and its end; `each` micro-batches per direction."""
        near, far = int(self.from_last), int(not self.from_last)
        inside = ranks // 2 - depth - 1
        for _ in range(2 * inside):
            yield (self.forward(near),)
        for _ in range(depth + 1):
            yield (self.forward(near),)
            yield (self.forward(far),)
        for _ in range(inside):
            yield (self.backward(far, put_off=True),)
            yield (self.put_off.popleft(),)
            yield (self.forward(far),)
        for number in range(each - ranks + depth + 1):
            pair = self.forward(near), self.backward(far)
            yield from [pair] if number or inside else [(piece,) for piece in pair]
            yield self.forward(far), self.backward(near)
        for _ in range(inside):
            yield (self.backward(far),)
            yield self.forward(far), self.backward(near)
        half = (depth + 1) // 2
        for number in range(depth + 1):
            yield (self.backward(far, put_off=number > half or (number == half and depth % 2 == 1)),)
            yield (self.backward(near, put_off=number >= half),)
        for _ in range(inside):
            yield (self.put_off.popleft(),)
            yield (self.backward(near, put_off=True),)
        while self.put_off:
            yield (self.put_off.popleft(),)

    def forward(self, direction: int) -> Piece:
        """The next micro-batch's."""
        return Piece(Part.FORWARD, direction, self._next(direction, forward=True))

    def backward(self, direction: int, *, put_off: bool = False) -> Piece:
        """The next micro-batch's, its gradients of weights put off or not."""
        number = self._next(direction, forward=False)
        if put_off:
            self.put_off.append(Piece(Part.WEIGHT, direction, number))
        return Piece(Part.INPUT if put_off else Part.BACKWARD, direction, number)

    def _next(self, direction: int, *, forward: bool) -> int:
        key = forward, direction
        self.done[key] = self.done.get(key, 0) + 1
        return self.done[key] - 1


def dual_pipe_program(ranks: int, num_micro_batches: int, times: Times) -> Program:
    """One step as a program in which messages take no time; it holds a stash of 4 bytes per micro-batch and direction.

    Raises:
        InputError: see `dual_pipe_order`.
    """
    build = _Build()
    for rank in range(ranks):
        sequence = []
        for act in dual_pipe_order(ranks, rank, num_micro_batches):
            ports = [build.ports(ranks, rank, piece) for piece in act]
            reads = tuple(Port(register) for read, _ in ports for register in read)
            writes = tuple(Port(register) for _, written in ports for register in written)
            name = "&".join(f"{piece.part}{piece.direction}.{piece.micro_batch}" for piece in act)
            sequence.append(build.act(Actor(name, rank, ActKind.COMPUTE, reads, writes, work=Work(times.of(act)))))
        build.streams.append(Stream(rank, "compute", tuple(sequence)))
    build.send()
    return Program(
        ranks, tuple(build.registers), tuple(build.actors), tuple(build.streams), num_micro_batches=num_micro_batches
    )


@dataclass(slots=True)
class _Build:
    registers: list[Register] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    known: dict[tuple[str, int], int] = field(default_factory=dict)
    sent: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)

    def act(self, actor: Actor) -> int:
        """Add an actor."""
        self.actors.append(actor)
        return len(self.actors) - 1

    def register(self, name: str, rank: int, *, size: int = 0) -> int:
        """The register of a name, added where it is new."""
        if (name, rank) not in self.known:
            self.known[name, rank] = len(self.registers)
            self.registers.append(Register(name, rank, (size,), DType.FLOAT32))
        return self.known[name, rank]

    def ports(self, ranks: int, rank: int, piece: Piece) -> tuple[list[int], list[int]]:
        """(registers read, registers written) of a piece."""
        number, ahead = f"{piece.direction}.{piece.micro_batch}", 1 - 2 * piece.direction
        stash, later = self.register(f"stash {number}", rank, size=1), f"gradient {number}"
        if piece.part is Part.WEIGHT:
            return [self.register(later, rank), stash], []
        forward = piece.part is Part.FORWARD
        towards = rank + (ahead if forward else -ahead)
        comes_from = rank - (ahead if forward else -ahead)
        what = f"{'activation' if forward else 'error'} {number}"
        reads = [self.register(what, rank)] if 0 <= comes_from < ranks else []
        writes = [self.register(f"{what} leaves", rank)] if 0 <= towards < ranks else []
        if writes:
            self.sent.setdefault((rank, towards), []).append((writes[0], self.register(what, towards)))
        if forward:
            writes.append(stash)
        elif piece.part is Part.BACKWARD:
            reads.append(stash)
        else:
            writes.append(self.register(later, rank))
        return reads, writes

    def send(self) -> None:
        """Messages in the sender's order, one stream per pair of ranks on either side."""
        rendezvous = 0
        for (source, target), moved in sorted(self.sent.items()):
            sides: tuple[list[int], list[int]] = ([], [])
            for left, arrived in moved:
                ends = ((source, (Port(left),), ()), (target, (), (Port(arrived),)))
                for side, (rank, reads, writes) in zip(sides, ends, strict=True):
                    name = self.registers[arrived].name
                    side.append(self.act(Actor(name, rank, ActKind.TRANSFER, reads, writes, rendezvous=rendezvous)))
                rendezvous += 1
            for rank, side in zip((source, target), sides, strict=True):
                self.streams.append(Stream(rank, f"{source}>{target}", tuple(side)))
