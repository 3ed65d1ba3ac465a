"""Bare pipelines, to study schedules: one actor per leg of the schedule, stages alike, no model behind them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from strategy.graph.graph import Phase
from strategy.layout.in_flight import Leg, UnitRun, unit_run
from strategy.layout.schedule import Chunk, Schedule, at_position, backward_first, chunk_order
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream, Work
from strategy.sbp.tensor import DType

NAMES = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}


def pipeline(
    stages: int,
    micro_batches: int,
    schedule: str,
    *,
    laps: int | None = None,
    forward_ns: int = 1,
    backward_ns: int = 1,
    weight_ns: int = 1,
    transfer_ns: int = 0,
    cap: int | None = None,
) -> Program:
    """Stage s on rank s. Only the stash (what later passes need of forward) has bytes: 4 per micro-batch and lap.

    Args:
        stages: number of ranks.
        micro_batches: acts per step of every actor.
        schedule: by name.
        laps: where not the schedule's own.
        forward_ns: of one micro-batch on one stage and lap.
        backward_ns: likewise.
        weight_ns: likewise, where the schedule sets the gradients of weights apart.
        transfer_ns: between two stages.
        cap: most micro-batches in flight on any stage, each running backwards first, instead of 1F1B's caps.
    """
    order = Schedule(schedule)
    laps = laps or order.default_laps
    run = unit_run(order, stages, micro_batches, laps)
    build = _Build(micro_batches, transfer_ns, run)
    last = Phase.WEIGHT if order.splits_backward else Phase.BACKWARD
    times = {Phase.FORWARD: forward_ns, Phase.BACKWARD: backward_ns, Phase.WEIGHT: weight_ns}
    places = [at_position(order, stages, place) for place in range(stages * laps)]
    reads: dict[Leg, list[int]] = {leg: [] for leg in run.begins}
    writes: dict[Leg, list[int]] = {leg: [] for leg in run.begins}
    for stage, lap in places:
        forward, end = Leg(Phase.FORWARD, stage, lap), Leg(last, stage, lap)
        held = cap or run.in_flight(forward, [end])
        stash = build.register(f"stash{lap}", stage, blocks=held, size=1)
        writes[forward].append(stash)
        reads[end].append(stash)
    for (stage, lap), (after, next_lap) in pairwise(places):
        build.connect("activation", Leg(Phase.FORWARD, stage, lap), Leg(Phase.FORWARD, after, next_lap), reads, writes)
        build.connect("gradient", Leg(Phase.BACKWARD, after, next_lap), Leg(Phase.BACKWARD, stage, lap), reads, writes)
    actors = {
        leg: build.compute(f"{NAMES[leg.phase]}{'_' * leg.lap}{leg.stage}", leg.stage, reads[leg], writes[leg], time_ns)
        for leg, time_ns in ((leg, times[leg.phase]) for leg in run.begins)
    }
    for s in range(stages):
        chunks: Iterable[Chunk] = chunk_order(order, stages, s, micro_batches, laps)
        if cap is not None:
            chunks = backward_first(stages, micro_batches, blocks=cap, backward_time=1)[s]
        turns = tuple(actors[Leg(chunk.phase, s, chunk.lap)] for chunk in chunks)
        build.streams.append(Stream(s, "compute", turns))
    return Program(
        ranks=stages,
        registers=tuple(build.registers),
        actors=tuple(build.actors),
        streams=tuple(build.streams),
        num_micro_batches=micro_batches,
        tokens_per_step=micro_batches,
    )


class _Build:
    def __init__(self, micro_batches: int, transfer_ns: int, run: UnitRun) -> None:
        self.micro_batches = micro_batches
        self.transfer_ns = transfer_ns
        self.run = run
        self.registers: list[Register] = []
        self.actors: list[Actor] = []
        self.streams: list[Stream] = []
        self.rendezvous = 0

    def register(self, name: str, rank: int, *, blocks: int, size: int) -> int:
        self.registers.append(Register(f"{name}{rank}", rank, (size,), DType.FLOAT32, blocks=blocks))
        return len(self.registers) - 1

    def compute(self, name: str, rank: int, reads: list[int], writes: list[int], time_ns: int) -> int:
        m, work = self.micro_batches, Work(time_ns)
        actor = Actor(name, rank, ActKind.COMPUTE, tuple(map(Port, reads)), tuple(map(Port, writes)), m, work=work)
        self.actors.append(actor)
        return len(self.actors) - 1

    def connect(
        self, name: str, source: Leg, target: Leg, reads: dict[Leg, list[int]], writes: dict[Leg, list[int]]
    ) -> None:
        """One register where the stage is the same; else one on either stage, and a stream of its own between them."""
        held = max(2, self.run.in_flight(source, [target], arrives=source.stage != target.stage))
        arrives = self.register(f"{name}{target.lap} arrives ", target.stage, blocks=held, size=0)
        reads[target].append(arrives)
        if source.stage == target.stage:
            writes[source].append(arrives)
            return
        kind, number, m, work = ActKind.TRANSFER, self.rendezvous, self.micro_batches, Work(self.transfer_ns)
        leaves = self.register(f"{name}{source.lap} leaves ", source.stage, blocks=2, size=0)
        writes[source].append(leaves)
        sent, came = f"send {name}{source.lap} {source.stage}", f"receive {name}{target.lap} {target.stage}"
        send = Actor(sent, source.stage, kind, (Port(leaves),), (), m, rendezvous=number, work=work)
        receive = Actor(came, target.stage, kind, (), (Port(arrives),), m, rendezvous=number, work=work)
        for actor in (send, receive):
            self.actors.append(actor)
            self.streams.append(Stream(actor.rank, actor.name, (len(self.actors) - 1,) * m))
        self.rendezvous += 1
