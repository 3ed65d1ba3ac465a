"""The simulator's speed: one figure per way of simulating, with every raw sample, in CPU seconds of one core.

Programs are pipelines as the closed forms have them: a forward and a backward actor per stage, and, per op, more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from simulator.engine import run
from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order
from strategy.program.builder import ProgramBuilder
from strategy.program.program import ActKind, Program, Work

SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Speed:
    """One way: CPU seconds of each sample, for how many units of what."""

    name: str
    unit: str
    count: int
    samples_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        """The fastest sample, which others on the machine disturbed least."""
        return min(self.samples_s)

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self) | {"best_s": self.best_s, "per_s": self.count / self.best_s}


def speeds() -> Iterator[Speed]:
    """All ways, one after another; conservation is checked after every run."""
    folded = pipeline(64, 512)
    yield _events("1F1B, 64 stages x 512 micro-batches, folded", folded)
    yield _events("per op, 64 stages x 512 micro-batches, folded", pipeline(64, 512, ops=32))
    yield _events("1F1B, 64 stages x 512 micro-batches, folded, shared ports", through_ports(folded))


def _samples(act: Callable[[], object]) -> tuple[float, ...]:
    act()
    found = []
    for _ in range(SAMPLES):
        began = time.process_time()
        act()
        found.append(time.process_time() - began)
    return tuple(found)


def _events(name: str, program: Program) -> Speed:
    return Speed(name, "events", run(program, 1).num_events, _samples(lambda: run(program, 1)))


def through_ports(program: Program) -> Program:
    """The same, with transfers that send bytes through one port per rank."""
    actors = tuple(
        replace(actor, work=Work(5, ((f"port:{actor.rank}", 1000),))) if actor.rendezvous is not None else actor
        for actor in program.actors
    )
    return replace(program, actors=actors, resources={f"port:{rank}": 1e10 for rank in range(program.ranks)})


def pipeline(stages: int, micro_batches: int, *, ops: int = 1) -> Program:
    """1F1B, each pass in `ops` acts, stage s on rank s."""
    build = _Pipeline(stages, micro_batches, ops)
    for stage in range(stages):
        build.stage(stage)
    return build.program.freeze(stages, num_micro_batches=micro_batches)


class _Pipeline:
    """A pipeline under construction, stage by stage."""

    def __init__(self, stages: int, micro_batches: int, ops: int) -> None:
        self.stages, self.m, self.ops = stages, micro_batches, ops
        self.program = ProgramBuilder()
        self.meetings: dict[tuple[Phase, int], int] = {}

    def stage(self, stage: int) -> None:
        """The acts of one rank."""
        stash = self._register(stage, self.stages - stage)
        chains: dict[Phase, list[int]] = {}
        for phase, takes_ns in ((Phase.FORWARD, 100_003), (Phase.BACKWARD, 210_007)):
            forward = phase is Phase.FORWARD
            before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
            reads = [] if forward else [stash]
            if 0 <= before < self.stages:
                came = self._register(stage, 2)
                self._transfer((phase, before), stage, [], [came])
                reads.append(came)
            chain = []
            for op in range(self.ops):
                last = op == self.ops - 1
                writes = [stash] if forward and last else []
                if not last:
                    writes.append(self._register(stage, 1))
                elif 0 <= after < self.stages:
                    leaves = self._register(stage, 2)
                    self._transfer((phase, stage), stage, [leaves], [])
                    writes.append(leaves)
                time_ns = takes_ns // self.ops
                chain.append(self.program.act(self._name, stage, time_ns, reads=reads, writes=writes, acts=self.m))
                reads = [] if last else writes[-1:]
            chains[phase] = chain
        chunks = chunk_order(Schedule.ONE_F_ONE_B, self.stages, stage, self.m)
        self.program.stream(stage, "compute", (actor for chunk in chunks for actor in chains[chunk.phase]))

    @property
    def _name(self) -> str:
        return f"a{len(self.program.actors)}"

    def _register(self, rank: int, blocks: int) -> int:
        return self.program.register(f"r{len(self.program.registers)}", rank, elements=1, blocks=blocks)

    def _transfer(self, way: tuple[Phase, int], rank: int, reads: list[int], writes: list[int]) -> None:
        """One end of the transfer of a phase from a stage; its other end is made with the other stage."""
        if way not in self.meetings:
            self.meetings[way] = self.program.meeting()
        actor = self.program.act(
            self._name,
            rank,
            7_001,
            reads=reads,
            writes=writes,
            acts=self.m,
            kind=ActKind.TRANSFER,
            meeting=self.meetings[way],
        )
        self.program.stream(rank, f"transfer {actor}", (actor,) * self.m)
