"""The simulator's speed: one figure per way of simulating, with every raw sample, in CPU seconds of one core.

Programs are pipelines as the closed forms have them: a forward and a backward actor per stage, and, per op, more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import numpy as np

from simulator.act_graph import ActGraph, act_graph
from simulator.engine import run
from simulator.sweep import durations_ns, sweep
from strategy.graph.graph import Phase
from strategy.hardware.presets import find_cluster
from strategy.layout.schedule import Schedule, chunk_order
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType
from strategy.search.ranking import Configurations, Transformer, ranking, transformer_flop

SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Speed:
    """One way: CPU seconds of each sample, for how many units of what; `once_s` is spent before the first."""

    name: str
    unit: str
    count: int
    once_s: float
    samples_s: tuple[float, ...]

    @property
    def best_s(self) -> float:
        """The fastest sample, which others on the machine disturbed least."""
        return min(self.samples_s)

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self) | {"best_s": self.best_s, "per_s": self.count / self.best_s}


def speeds() -> Iterator[Speed]:
    """All ways, one after another."""
    folded = pipeline(64, 512)
    yield _swept("1F1B, 64 stages x 512 micro-batches, folded", folded)
    yield _swept("per op, 64 stages x 512 micro-batches, folded", pipeline(64, 512, ops=32))
    whole = pipeline(64, 512, tensor=8, data=6)
    yield _swept("3,072 GPUs unfolded, with jitter", whole, jitter=True)
    yield _events("event engine, conservation checked", pipeline(16, 64))
    yield _events("event engine, shared ports, conservation checked", through_ports(folded))
    yield _ranked()


def _samples(act: Callable[[], object]) -> tuple[float, ...]:
    act()
    found = []
    for _ in range(SAMPLES):
        began = time.process_time()
        act()
        found.append(time.process_time() - began)
    return tuple(found)


def _events(name: str, program: Program) -> Speed:
    return Speed(name, "events", run(program, 1).num_events, 0.0, _samples(lambda: run(program, 1)))


def _swept(name: str, program: Program, *, jitter: bool = False) -> Speed:
    act_graph(pipeline(2, 2), 1)
    began = time.process_time()
    graph = act_graph(program, 1)
    once_s = time.process_time() - began
    extra = (graph.latency_ns * np.random.default_rng(1).uniform(0, 0.02, graph.num_acts)).astype(np.int64)
    takes = durations_ns(graph, extra if jitter else None)
    return Speed(name, "acts", graph.num_acts, once_s, _samples(lambda: _sweep(graph, takes)))


def _sweep(graph: ActGraph, takes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    return sweep(graph, takes).makespan_ns


def _ranked() -> Speed:
    """Every configuration of a large space, many times over."""
    layers, width, sequence, vocabulary = 128, 25600, 2048, 51200
    flop = transformer_flop(layers, width, sequence, vocabulary)
    model = Transformer(layers, width, sequence, 12 * layers * width**2, flop)
    rng = np.random.default_rng(0)
    size = 200_000
    tp, pp = 2.0 ** rng.integers(0, 6, size), 2.0 ** rng.integers(0, 8, size)
    many = Configurations.of(
        np.maximum(3072 // (tp * pp), 1),
        tp,
        pp,
        2.0 ** rng.integers(0, 4, size),
        2.0 ** rng.integers(0, 3, size),
        rng.integers(0, 2, size),
    )
    cluster = find_cluster("dgx-a100:384")
    samples = _samples(lambda: ranking(model, cluster, 312e12, 3072, many))
    return Speed("closed-form ranking", "strategies", size, 0.0, samples)


def through_ports(program: Program) -> Program:
    """The same, with transfers that send bytes through one port per rank."""
    actors = tuple(
        replace(actor, work=Work(5, ((f"port:{actor.rank}", 1000),))) if actor.rendezvous is not None else actor
        for actor in program.actors
    )
    return replace(program, actors=actors, resources={f"port:{rank}": 1e10 for rank in range(program.ranks)})


def pipeline(stages: int, micro_batches: int, *, ops: int = 1, tensor: int = 1, data: int = 1) -> Program:
    """1F1B, each pass in `ops` acts; a tensor group meets after every pass, a data group at the end."""
    build = _Pipeline(stages, micro_batches, ops, tensor, data)
    for place in range(data * tensor):
        for stage in range(stages):
            build.rank(stage, place)
    return build.program()


class _Pipeline:
    """Rank s * places + place runs stage s; transfers keep their place."""

    def __init__(self, stages: int, micro_batches: int, ops: int, tensor: int, data: int) -> None:
        self.stages, self.m, self.ops, self.tensor, self.data = stages, micro_batches, ops, tensor, data
        self.places = tensor * data
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.streams: list[Stream] = []
        self.meetings: dict[object, int] = {}

    def program(self) -> Program:
        """Everything that was built."""
        ranks = self.stages * self.places
        return Program(ranks, tuple(self.registers), tuple(self.actors), tuple(self.streams), num_micro_batches=self.m)

    def rank(self, stage: int, place: int) -> None:
        """The acts of one rank."""
        rank = stage * self.places + place
        ahead = self.stages - stage
        stash = self._register(rank, ahead)
        chains: dict[Phase, list[int]] = {}
        for phase, takes_ns in ((Phase.FORWARD, 100_003), (Phase.BACKWARD, 210_007)):
            forward = phase is Phase.FORWARD
            before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
            reads = [] if forward else [stash]
            if 0 <= before < self.stages:
                came = self._register(rank, 2)
                self._transfer((phase, before, place), rank, (), (came,))
                reads.append(came)
            chain = []
            for op in range(self.ops):
                last = op == self.ops - 1
                writes = [stash] if forward and last else []
                if not last or self.tensor > 1:
                    writes.append(self._register(rank, 1))
                elif 0 <= after < self.stages:
                    writes.append(self._leaving(rank, phase, stage, place))
                chain.append(self._compute(rank, reads, writes, takes_ns // self.ops))
                reads = writes[-1:] if not last or self.tensor > 1 else []
            if self.tensor > 1:
                writes = [self._leaving(rank, phase, stage, place)] if 0 <= after < self.stages else []
                number = self._meeting((phase, stage, place // self.tensor, "tensor"))
                chain.append(self._act(rank, ActKind.ALL_REDUCE, reads, writes, 5_003, self.m, number))
            chains[phase] = chain
        turns = [
            a for chunk in chunk_order(Schedule.ONE_F_ONE_B, self.stages, stage, self.m) for a in chains[chunk.phase]
        ]
        if self.data > 1:
            number = self._meeting((stage, place % self.tensor, "data"))
            turns.append(self._act(rank, ActKind.ALL_REDUCE, [], [], 900_001, 1, number))
        self.streams.append(Stream(rank, "compute", tuple(turns)))

    def _leaving(self, rank: int, phase: Phase, stage: int, place: int) -> int:
        leaves = self._register(rank, 2)
        self._transfer((phase, stage, place), rank, (leaves,), ())
        return leaves

    def _transfer(self, key: object, rank: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        actor = self._act(rank, ActKind.TRANSFER, list(reads), list(writes), 7_001, self.m, self._meeting(key))
        self.streams.append(Stream(rank, f"transfer {actor}", (actor,) * self.m))

    def _meeting(self, key: object) -> int:
        return self.meetings.setdefault(key, len(self.meetings))

    def _register(self, rank: int, blocks: int) -> int:
        self.registers.append(Register(f"r{len(self.registers)}", rank, (1,), DType.FLOAT32, blocks))
        return len(self.registers) - 1

    def _compute(self, rank: int, reads: list[int], writes: list[int], takes_ns: int) -> int:
        return self._act(rank, ActKind.COMPUTE, reads, writes, takes_ns, self.m, None)

    def _act(
        self,
        rank: int,
        kind: ActKind,
        reads: list[int],
        writes: list[int],
        takes_ns: int,
        acts: int,
        number: int | None,
    ) -> int:
        ports = tuple(map(Port, reads)), tuple(map(Port, writes))
        self.actors.append(Actor(f"a{len(self.actors)}", rank, kind, *ports, acts, number, work=Work(takes_ns)))
        return len(self.actors) - 1
