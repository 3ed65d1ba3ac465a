"""Random small programs, for comparing the simulator, the executor and the monitor.

A program is grown in three turns: registers and actors without order, then blocks, then sequences. The sequences
come from one run under the credits alone in which a random actor acts whenever several may; a program that lives
so far lives under those sequences too. Some have two entries of a sequence swapped afterwards, and may hang.
All acts have `task=None`, so that an executor can run them by passing credits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from strategy.base.errors import DeadlockError
from strategy.lowering.memory import allocated
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.program.protocol import Protocol, admit, rendezvous_members
from strategy.sbp.tensor import DType


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a program exercises. `most_ready` is how many actors could act at once in an untimed run of it."""

    live: bool
    most_ready: int
    ranks: int
    streams: int
    dynamic_streams: int
    contested_dynamic: bool
    rendezvous: int
    largest_rendezvous: int
    states: int
    rates: int
    several_blocks: bool
    resources: int


def random_program(seed: int, *, resources: bool = True, swap_probability: float = 0.1) -> Program:
    """A program of 2 to 4 ranks; the same seed gives the same program.

    Args:
        seed: of everything random in it.
        resources: whether acts share resources (their order of completion then depends on contention).
        swap_probability: of swapping two entries of a static sequence, after which the program may hang.
    """
    rng = random.Random(seed)
    grower = _Grower(rng, resources=resources)
    grower.grow()
    program = grower.program()
    order = _random_order(program, rng)
    while order is None:
        roomier = tuple(replace(register, blocks=register.blocks + 1) for register in program.registers)
        program = replace(program, registers=roomier)
        order = _random_order(program, rng)
    program = replace(program, streams=tuple(_streams(program, grower.place, order, rng)))
    return allocated(_swapped(program, rng) if rng.random() < swap_probability else program)


def live_programs(count: int, *, seed: int = 0, resources: bool = True) -> Iterator[tuple[int, Program]]:
    """`count` programs that do not hang, each with its seed."""
    while count:
        program = _if_live(seed, resources)
        if program is not None:
            yield seed, program
            count -= 1
        seed += 1


def live_program(place: int, *, seed: int, resources: bool = True) -> tuple[int, Program]:
    """That at a place of `live_programs`: cases of a test are told by their place, and none is made to list them."""
    *_, found = live_programs(place + 1, seed=seed, resources=resources)
    return found


@cache
def _if_live(seed: int, resources: bool) -> Program | None:
    program = random_program(seed, resources=resources)
    return program if coverage(program).live else None


def coverage(program: Program) -> Coverage:
    """What the program exercises, found by running it untimed."""
    try:
        admit(program)
        live = True
    except DeadlockError:
        live = False
    members = rendezvous_members(program)
    most_ready, contested = _readiness(program)
    return Coverage(
        live=live,
        most_ready=most_ready,
        ranks=program.ranks,
        streams=len(program.streams),
        dynamic_streams=sum(stream.dynamic for stream in program.streams),
        contested_dynamic=contested,
        rendezvous=len(members),
        largest_rendezvous=max((len(found) for found in members.values()), default=0),
        states=sum(register.initial > 0 for register in program.registers),
        rates=len({actor.acts_per_step for actor in program.actors}),
        several_blocks=any(register.blocks > 1 for register in program.registers),
        resources=len(program.resources),
    )


class _Grower:
    """Grows registers and actors; `place` says which stream of its rank an actor belongs to."""

    def __init__(self, rng: random.Random, *, resources: bool) -> None:
        self.rng = rng
        self.ranks = rng.randint(2, 4)
        self.micro_batches = rng.randint(1, 4)
        self.resources = {f"link{i}": float(rng.choice((3, 10, 64)) * 10**9) for i in range(2)} if resources else {}
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.place: list[str] = []
        self.values: list[list[int]] = [[] for _ in range(self.ranks)]
        self.rendezvous = 0

    def grow(self) -> None:
        """Per rank a loader and a few ops, ranks meeting in between, then gradients, reductions and updates."""
        for rank in range(self.ranks):
            self._act(rank, "load", ActKind.LOAD, "loader", reads=0)
        for _ in range(self.rng.randint(2, 5)):
            for rank in range(self.ranks):
                if self.rng.random() < 0.8:
                    self._act(rank, "op", ActKind.COMPUTE, self.rng.choice(("main", "main", "side")))
            choice = self.rng.random()
            if choice < 0.4:
                self._collective(self.rng.sample(range(self.ranks), self.rng.randint(2, self.ranks)))
            elif choice < 0.8:
                self._transfer(*self.rng.sample(range(self.ranks), 2))
        if self.rng.random() < 0.7:
            self._update(sorted(self.rng.sample(range(self.ranks), self.rng.randint(1, self.ranks))))

    def program(self) -> Program:
        """Every actor in a dynamic stream of its own: nothing but credits orders it."""
        streams = tuple(Stream(actor.rank, actor.name, (i,), dynamic=True) for i, actor in enumerate(self.actors))
        return Program(
            ranks=self.ranks,
            registers=tuple(self.registers),
            actors=tuple(self.actors),
            streams=streams,
            resources=self.resources,
            num_micro_batches=self.micro_batches,
            tokens_per_step=self.micro_batches * 8,
        )

    def _register(self, rank: int, *, blocks: int | None = None, initial: int = 0) -> int:
        count = self.rng.randint(1, 3) if blocks is None else blocks
        shape = (self.rng.randint(1, 8),)
        name = f"r{len(self.registers)}"
        self.registers.append(Register(name, rank, shape, DType.FLOAT32, blocks=count, initial=initial))
        return len(self.registers) - 1

    def _add(self, place: str, actor: Actor) -> None:
        name = f"{actor.name}{len(self.actors)}"
        self.actors.append(replace(actor, name=name, priority=self.rng.randint(0, 3)))
        self.place.append(place)

    def _work(self) -> Work:
        demands = tuple((name, self.rng.randint(1, 4000)) for name in self.resources if self.rng.random() < 0.3)
        return Work(self.rng.choice((0, 1, 10, self.rng.randint(1, 1000))), demands)

    def _act(self, rank: int, name: str, kind: ActKind, place: str, *, reads: int | None = None) -> None:
        known = self.values[rank]
        wanted = min(len(known), self.rng.randint(1, 3)) if reads is None else reads
        sources = self.rng.sample(known, wanted)
        targets = [self._register(rank) for _ in range(self.rng.randint(1, 2))]
        known.extend(targets)
        actor = Actor(
            name,
            rank,
            kind,
            reads=tuple(map(Port, sources)),
            writes=tuple(map(Port, targets)),
            acts_per_step=self.micro_batches,
            work=self._work(),
        )
        self._add(place, actor)

    def _member(self, name: str, rank: int, kind: ActKind, place: str, work: Work, *, read: bool, write: bool) -> None:
        source = (Port(self.rng.choice(self.values[rank])),) if read else ()
        target = (Port(self._register(rank)),) if write else ()
        self.values[rank].extend(port.register for port in target)
        actor = Actor(name, rank, kind, source, target, self.micro_batches, rendezvous=self.rendezvous, work=work)
        self._add(place, actor)

    def _collective(self, ranks: list[int]) -> None:
        kind = self.rng.choice((ActKind.ALL_REDUCE, ActKind.ALL_GATHER, ActKind.REDUCE_SCATTER, ActKind.ALL_TO_ALL))
        work, place = self._work(), self.rng.choice(("collectives", "main"))
        for rank in sorted(ranks):
            self._member(kind.value, rank, kind, place, work, read=True, write=True)
        self.rendezvous += 1

    def _transfer(self, source: int, target: int) -> None:
        work, channel = self._work(), f"channel {source} to {target}"
        self._member("send", source, ActKind.TRANSFER, channel, work, read=True, write=False)
        self._member("receive", target, ActKind.TRANSFER, channel, work, read=False, write=True)
        self.rendezvous += 1

    def _update(self, ranks: list[int]) -> None:
        """A parameter per rank, read by every micro-batch, its gradient summed, reduced and applied in place."""
        work = self._work()
        for rank in ranks:
            state = self._register(rank, blocks=1, initial=1)
            total, mean = self._register(rank), self._register(rank)
            m = self.micro_batches
            sources = (Port(self.rng.choice(self.values[rank])), Port(state, m))
            gradient = Actor("gradient", rank, ActKind.COMPUTE, sources, (Port(total, m),), m, work=self._work())
            reduction = Actor("reduce", rank, ActKind.ALL_REDUCE, (Port(total),), (Port(mean),), work=work)
            self._add("main", gradient)
            self._add("collectives", replace(reduction, rendezvous=self.rendezvous))
            update = Actor("update", rank, ActKind.COMPUTE, (Port(mean),), (Port(state),), work=self._work())
            self._add("main", update)
        self.rendezvous += 1


def _acts_now(protocol: Protocol, members: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Groups of actors that could act now, each at the head of its stream: alone, or a whole rendezvous."""
    heads = {actor for stream in protocol.streams if (actor := protocol.head(stream)) is not None}
    groups = []
    for actor in sorted(heads):
        number = protocol.program.actors[actor].rendezvous
        peers = (actor,) if number is None else members[number]
        if peers[0] == actor and heads.issuperset(peers):
            groups.append(peers)
    return groups


def _random_order(program: Program, rng: random.Random) -> list[int] | None:
    """The actors of one step in a random order that the credits allow, or None if they stop short."""
    protocol = Protocol(program, steps=1)
    members = rendezvous_members(program)
    order: list[int] = []
    while groups := _acts_now(protocol, members):
        for actor in rng.choice(groups):
            protocol.done(protocol.issue(protocol.stream_of(actor), actor))
            order.append(actor)
    return order if protocol.finished else None


def _streams(program: Program, place: list[str], order: list[int], rng: random.Random) -> Iterator[Stream]:
    """Actors of one place of one rank share a stream; loaders, and some side streams, are dynamic."""
    for rank in range(program.ranks):
        for name in sorted({place[i] for i, actor in enumerate(program.actors) if actor.rank == rank}):
            sequence = [i for i in order if place[i] == name and program.actors[i].rank == rank]
            dynamic = name == "loader" or (name == "side" and rng.random() < 0.5)
            yield Stream(rank, name, tuple(sorted(set(sequence)) if dynamic else sequence), dynamic)


def _swapped(program: Program, rng: random.Random) -> Program:
    candidates = [i for i, stream in enumerate(program.streams) if not stream.dynamic and len(set(stream.sequence)) > 1]
    if not candidates:
        return program
    index = rng.choice(candidates)
    sequence = list(program.streams[index].sequence)
    i, j = rng.sample(range(len(sequence)), 2)
    sequence[i], sequence[j] = sequence[j], sequence[i]
    streams = list(program.streams)
    streams[index] = replace(streams[index], sequence=tuple(sequence))
    return replace(program, streams=tuple(streams))


def _readiness(program: Program) -> tuple[int, bool]:
    """The most groups that could act at once, and whether a dynamic stream ever had to choose."""
    protocol = Protocol(program, steps=1)
    members = rendezvous_members(program)
    most, contested = 0, False
    while groups := _acts_now(protocol, members):
        most = max(most, len(groups))
        for stream in program.streams:
            contested |= stream.dynamic and sum(map(protocol.may_act, stream.sequence)) > 1
        for actor in groups[0]:
            protocol.done(protocol.issue(protocol.stream_of(actor), actor))
    return most, contested
