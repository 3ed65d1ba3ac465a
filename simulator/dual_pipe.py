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
from itertools import chain

from simulator.stage_times import StageTimes
from strategy.base.errors import InputError
from strategy.program.builder import ProgramBuilder
from strategy.program.program import Program


class PassKind(StrEnum):
    """What is done for one micro-batch on one stage."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class MicroBatchPass:
    """One part for one micro-batch of one direction: 0 enters at the first rank, 1 at the last."""

    part: PassKind
    direction: int
    micro_batch: int


def dual_pipe_order(ranks: int, rank: int, num_micro_batches: int) -> list[tuple[MicroBatchPass, ...]]:
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
    put_off: deque[MicroBatchPass] = field(default_factory=deque)

    def acts(self, ranks: int, depth: int, each: int) -> Iterator[tuple[MicroBatchPass, ...]]:
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

    def forward(self, direction: int) -> MicroBatchPass:
        """The next micro-batch's."""
        return MicroBatchPass(PassKind.FORWARD, direction, self._next(direction, forward=True))

    def backward(self, direction: int, *, put_off: bool = False) -> MicroBatchPass:
        """The next micro-batch's, its gradients of weights put off or not."""
        number = self._next(direction, forward=False)
        if put_off:
            self.put_off.append(MicroBatchPass(PassKind.WEIGHT, direction, number))
        return MicroBatchPass(PassKind.INPUT if put_off else PassKind.BACKWARD, direction, number)

    def _next(self, direction: int, *, forward: bool) -> int:
        key = forward, direction
        self.done[key] = self.done.get(key, 0) + 1
        return self.done[key] - 1


def dual_pipe_program(stages: Sequence[StageTimes], num_micro_batches: int, *, hidden_ns: int = 0) -> Program:
    """One step as a program; it holds a stash of 4 bytes per micro-batch and direction.

    Args:
        stages: times of stage s, which is on rank s, and on rank -1 - s for the other direction.
        num_micro_batches: of both directions together.
        hidden_ns: how much less a forward and a backward pass take as one act than one after the other.

    Raises:
        InputError: see `dual_pipe_order`.
    """
    build = _Pieces(stages, hidden_ns)
    for rank in range(len(stages)):
        turns = [build.act(rank, act) for act in dual_pipe_order(len(stages), rank, num_micro_batches)]
        update_ns = stages[rank].update_ns + stages[-1 - rank].update_ns
        if update_ns:
            turns.append(build.program.act(f"U{rank}", rank, update_ns))
        build.program.stream(rank, "compute", turns)
    build.send()
    return build.program.freeze(len(stages), num_micro_batches=num_micro_batches)


class _Pieces:
    """What the pieces of both directions read and write."""

    def __init__(self, stages: Sequence[StageTimes], hidden_ns: int) -> None:
        self.program = ProgramBuilder()
        self.stages, self.hidden_ns = stages, hidden_ns
        self._known: dict[tuple[str, int], int] = {}
        self._sent: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def act(self, rank: int, pieces: Sequence[MicroBatchPass]) -> int:
        """The actor of one piece, or of two that overlap."""
        ports = [self._ports(rank, piece) for piece in pieces]
        reads, writes = (list(chain.from_iterable(sides)) for sides in zip(*ports, strict=True))
        time_ns = sum(self._time_ns(rank, piece) for piece in pieces) - self.hidden_ns * (len(pieces) > 1)
        name = "&".join(f"{piece.part}{piece.direction}.{piece.micro_batch}" for piece in pieces)
        return self.program.act(name, rank, time_ns, reads=reads, writes=writes)

    def _time_ns(self, rank: int, piece: MicroBatchPass) -> int:
        times = self.stages[-1 - rank if piece.direction else rank]
        return {
            PassKind.FORWARD: times.forward_ns,
            PassKind.BACKWARD: times.backward_ns,
            PassKind.INPUT: times.backward_ns - times.weight_ns,
            PassKind.WEIGHT: times.weight_ns,
        }[piece.part]

    def _register(self, name: str, rank: int, *, elements: int = 0) -> int:
        """The register of a name, added where it is new."""
        if (name, rank) not in self._known:
            self._known[name, rank] = self.program.register(name, rank, elements=elements)
        return self._known[name, rank]

    def _ports(self, rank: int, piece: MicroBatchPass) -> tuple[list[int], list[int]]:
        """(registers read, registers written) of a piece."""
        number, ahead = f"{piece.direction}.{piece.micro_batch}", 1 - 2 * piece.direction
        stash, later = self._register(f"stash {number}", rank, elements=1), f"gradient {number}"
        if piece.part is PassKind.WEIGHT:
            return [self._register(later, rank), stash], []
        forward, ranks = piece.part is PassKind.FORWARD, range(len(self.stages))
        towards = rank + (ahead if forward else -ahead)
        comes_from = rank - (ahead if forward else -ahead)
        what = f"{'activation' if forward else 'error'} {number}"
        reads = [self._register(what, rank)] if comes_from in ranks else []
        writes = [self._register(f"{what} leaves", rank)] if towards in ranks else []
        if writes:
            stage = min(rank, towards) if not piece.direction else len(self.stages) - 1 - max(rank, towards)
            message = writes[0], self._register(what, towards), self.stages[stage].message_ns
            self._sent.setdefault((rank, towards), []).append(message)
        if forward:
            writes.append(stash)
        elif piece.part is PassKind.BACKWARD:
            reads.append(stash)
        else:
            writes.append(self._register(later, rank))
        return reads, writes

    def send(self) -> None:
        """Messages in the sender's order, one stream per pair of ranks on either side."""
        for (source, target), moved in sorted(self._sent.items()):
            ends = [self.program.message(self.program.registers[message[1]].name, *message) for message in moved]
            for rank, sequence in zip((source, target), zip(*ends, strict=True), strict=True):
                self.program.stream(rank, f"{source}>{target}", sequence)
