"""All interleavings of tiny random programs: which ends they come to. Written from the rules, not from the protocol.

A state is, per actor, how many acts have started and how many have ended. Credits and places in streams follow from it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.sbp.tensor import DType

Counts = tuple[int, ...]


def tiny_program(seed: int) -> Program:
    """At most 4 actors on 1 or 2 ranks, with random credits, rates, sequences, states and rendezvous."""
    rng = random.Random(seed)
    ranks = rng.choice((1, 2, 2))
    acts = rng.randint(1, 3)
    count = rng.randint(2, 4)
    rank_of = sorted(i % ranks if rng.random() < 0.5 else rng.randrange(ranks) for i in range(count))
    rates = [acts] * count if rng.random() < 0.35 else [rng.choice((1, acts)) for _ in range(count)]
    registers, reads, writes = _random_registers(rng, rank_of, rates)
    actors = [
        Actor(f"a{i}", rank_of[i], ActKind.COMPUTE, tuple(reads[i]), tuple(writes[i]), rates[i]) for i in range(count)
    ]
    streams = list(_random_streams(rng, rank_of, rates))
    _meet(rng, actors, streams)
    return Program(ranks, tuple(registers), tuple(actors), tuple(streams))


def _random_registers(
    rng: random.Random, rank_of: list[int], rates: list[int]
) -> tuple[list[Register], list[list[Port]], list[list[Port]]]:
    """Registers, and what every actor reads and writes."""
    count = len(rates)
    reads: list[list[Port]] = [[] for _ in range(count)]
    writes: list[list[Port]] = [[] for _ in range(count)]
    registers: list[Register] = []
    for _ in range(rng.randint(1, 5)):
        producer = rng.randrange(count)
        blocks = rng.randint(1, 3)
        neighbours = [i for i in range(count) if rank_of[i] == rank_of[producer] and i != producer]
        if not neighbours:
            continue
        initial = rng.randint(0, blocks) if rng.random() < 0.4 else 0
        consumers = rng.sample(neighbours, rng.randint(1, len(neighbours)))
        pieces = min(rates[i] for i in (producer, *consumers))
        index = len(registers)
        registers.append(Register(f"r{index}", rank_of[producer], (1,), DType.FLOAT32, blocks=blocks, initial=initial))
        writes[producer].append(Port(index, rates[producer] // pieces))
        for consumer in consumers:
            reads[consumer].append(Port(index, rates[consumer] // pieces))
    return registers, reads, writes


def _random_streams(rng: random.Random, rank_of: list[int], rates: list[int]) -> Iterator[Stream]:
    """Two per rank, any of them dynamic, any of them empty."""
    names = iter("stuvwxyz")
    for rank in sorted(set(rank_of)):
        mine = [i for i, found in enumerate(rank_of) if found == rank]
        rng.shuffle(mine)
        cut = rng.randint(0, len(mine))
        for part in (mine[:cut], mine[cut:]):
            sequence = [i for i in part for _ in range(rates[i])]
            rng.shuffle(sequence)
            dynamic = rng.random() < 0.2
            yield Stream(rank, next(names), tuple(part if dynamic else sequence), dynamic)


def _meet(rng: random.Random, actors: list[Actor], streams: list[Stream]) -> None:
    """Make pairs on two ranks meet: one pair, or two; now and then in a dynamic stream, which is no program."""
    dynamic = {i for stream in streams if stream.dynamic for i in stream.sequence}
    allows_dynamic = rng.random() < 0.1
    for number in range(rng.choice((0, 2, 2))):
        pairs = [
            (i, j)
            for i, one in enumerate(actors)
            for j, other in enumerate(actors)
            if one.rank < other.rank
            and one.acts_per_step == other.acts_per_step
            and one.rendezvous is other.rendezvous is None
            and (allows_dynamic or not dynamic.intersection((i, j)))
        ]
        if pairs:
            for member in rng.choice(pairs):
                actors[member] = replace(actors[member], kind=ActKind.TRANSFER, rendezvous=number)


def ends(program: Program, steps: int) -> set[bool]:
    """Whether the program finishes, over all interleavings of starts and ends of acts: both, if timing decides."""
    return _Explorer(program, steps).ends()


class _Explorer:
    def __init__(self, program: Program, steps: int) -> None:
        self.program, self.actors, self.steps = program, program.actors, steps
        registers = range(len(program.registers))
        self.writers = [
            [(a, p) for a, x in enumerate(self.actors) for p in x.writes if p.register == r] for r in registers
        ]
        self.readers = [
            [(a, p) for a, x in enumerate(self.actors) for p in x.reads if p.register == r] for r in registers
        ]
        self.stream_of = {a: stream for stream in program.streams for a in stream.sequence}

    def ends(self) -> set[bool]:
        """Depth first over all states."""
        zero = (0,) * len(self.actors)
        wanted = tuple(self.steps * actor.acts_per_step for actor in self.actors)
        todo, seen, found = [(zero, zero)], {(zero, zero)}, set()
        while todo:
            state = todo.pop()
            following = list(self._moves(*state))
            if not following:
                found.add(state[1] == wanted)
            for new in following:
                if new not in seen:
                    seen.add(new)
                    todo.append(new)
        return found

    def _moves(self, started: Counts, ended: Counts) -> Iterator[tuple[Counts, Counts]]:
        """An act ends, or starts; those of a rendezvous together."""
        for actor, found in enumerate(self.actors):
            group = [
                a
                for a, other in enumerate(self.actors)
                if a == actor or (found.rendezvous is not None and other.rendezvous == found.rendezvous)
            ]
            if started[actor] > ended[actor]:
                yield started, _plus(ended, group)
            elif all(self._may_start(a, started, ended) for a in group):
                yield _plus(started, group), ended

    def _may_start(self, actor: int, started: Counts, ended: Counts) -> bool:
        stream, found = self.stream_of[actor], self.actors[actor]
        busy = any(started[a] > ended[a] for a in stream.sequence)
        if busy or started[actor] == self.steps * found.acts_per_step:
            return False
        if not stream.dynamic:
            past = sum(ended[a] for a in set(stream.sequence))
            if stream.sequence[past % len(stream.sequence)] != actor:
                return False
        return all(self._holds(port, started[actor], ended) for port in found.reads) and all(
            self._has_room(port, started[actor], ended) for port in found.writes
        )

    def _holds(self, port: Port, number: int, ended: Counts) -> bool:
        """Whether the piece that act `number` reads has been written, or was there from the start."""
        writers, initial = self.writers[port.register], self.program.registers[port.register].initial
        if initial and not writers:
            return True
        written = sum(ended[a] // p.acts_per_piece for a, p in writers)
        return initial + written > number // port.acts_per_piece

    def _has_room(self, port: Port, number: int, ended: Counts) -> bool:
        """Whether act `number` goes on with a piece, or a block is free for the one that it begins."""
        if number % port.acts_per_piece:
            return True
        register = self.program.registers[port.register]
        taken = register.initial + number // port.acts_per_piece
        given_back = min((ended[a] // p.acts_per_piece for a, p in self.readers[port.register]), default=taken)
        return taken - given_back < register.blocks


def _plus(counts: Counts, group: list[int]) -> Counts:
    return tuple(count + (actor in group) for actor, count in enumerate(counts))
