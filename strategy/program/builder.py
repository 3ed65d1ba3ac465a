"""ProgramBuilder: grows a program actor by actor, for schedules under study, benches and whatever has no graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType


@dataclass(slots=True)
class ProgramBuilder:
    """A program under construction; registers and actors are known by the numbers that adding them gives."""

    registers: list[Register] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    meetings: int = 0

    def register(self, name: str, rank: int, *, elements: int = 0, blocks: int = 1, initial: int = 0) -> int:
        """Add a register of float32 elements; one without elements passes credits on and takes no memory."""
        self.registers.append(Register(name, rank, (elements,), DType.FLOAT32, blocks=blocks, initial=initial))
        return len(self.registers) - 1

    def act(
        self,
        name: str,
        rank: int,
        time_ns: int,
        *,
        reads: Iterable[int] = (),
        writes: Iterable[int] = (),
        acts: int = 1,
        kind: ActKind = ActKind.COMPUTE,
        meeting: int | None = None,
        priority: int = 0,
    ) -> int:
        """Add an actor whose every act uses a piece of each register; `meeting` numbers its rendezvous."""
        ports = tuple(map(Port, reads)), tuple(map(Port, writes))
        self.actors.append(Actor(name, rank, kind, *ports, acts, meeting, priority, Work(time_ns)))
        return len(self.actors) - 1

    def meeting(self) -> int:
        """The number of a new rendezvous."""
        self.meetings += 1
        return self.meetings - 1

    def message(self, name: str, left: int, arrived: int, time_ns: int, *, acts: int = 1) -> tuple[int, int]:
        """Add both ends of a transfer from a register of one rank to a register of another."""
        number, kind = self.meeting(), ActKind.TRANSFER
        source, target = self.registers[left].rank, self.registers[arrived].rank
        send = self.act(name, source, time_ns, reads=[left], acts=acts, kind=kind, meeting=number)
        receive = self.act(name, target, time_ns, writes=[arrived], acts=acts, kind=kind, meeting=number)
        return send, receive

    def channel(self, name: str, left: int, arrived: int, time_ns: int, *, acts: int) -> None:
        """Add a transfer that has a stream to itself on either side."""
        for end in self.message(name, left, arrived, time_ns, acts=acts):
            self.stream(self.actors[end].rank, name, (end,) * acts)

    def stream(self, rank: int, name: str, sequence: Iterable[int], *, dynamic: bool = False) -> None:
        """Add a stream: the actors of one step in order, or, where it is dynamic, each once."""
        self.streams.append(Stream(rank, name, tuple(sequence), dynamic))

    def freeze(
        self,
        ranks: int,
        *,
        num_micro_batches: int = 1,
        tokens_per_step: int = 0,
        resources: Mapping[str, float] | None = None,
    ) -> Program:
        """What was built, as a value."""
        return Program(
            ranks=ranks,
            registers=tuple(self.registers),
            actors=tuple(self.actors),
            streams=tuple(self.streams),
            resources=dict(resources or {}),
            num_micro_batches=num_micro_batches,
            tokens_per_step=tokens_per_step,
        )
