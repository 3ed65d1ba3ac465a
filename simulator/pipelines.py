"""Bare pipelines, to study schedules: one actor per leg of the schedule, no model behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from strategy.graph.graph import Phase
from strategy.layout.in_flight import Leg, UnitRun, unit_run
from strategy.layout.schedule import Chunk, Schedule, at_position, backward_first, chunk_order
from strategy.program.builder import ProgramBuilder
from strategy.program.program import Program

NAMES = {Phase.FORWARD: "F", Phase.BACKWARD: "B", Phase.WEIGHT: "W"}


def pipeline(
    stages: int,
    micro_batches: int,
    schedule: str,
    *,
    laps: int | None = None,
    forward_ns: int | Sequence[int] = 1,
    backward_ns: int | Sequence[int] = 1,
    weight_ns: int | Sequence[int] = 1,
    transfer_ns: int | Sequence[int] = 0,
    update_ns: int | Sequence[int] = 0,
    cap: int | None = None,
) -> Program:
    """Stage s on rank s. Only the stash (what later passes need of forward) has bytes: 4 per micro-batch and lap.

    Times are one for all stages, or one per stage.

    Args:
        stages: number of ranks.
        micro_batches: acts per step of every actor.
        schedule: by name.
        laps: where not the schedule's own.
        forward_ns: of one micro-batch on one stage and lap.
        backward_ns: likewise.
        weight_ns: likewise, where the schedule sets the gradients of weights apart.
        transfer_ns: from a stage to the next, or back.
        update_ns: once per step, after all passes; there is no such act where it takes no time on any stage.
        cap: most micro-batches in flight on any stage, each running backwards first, instead of 1F1B's caps.
    """
    order = Schedule(schedule)
    laps = laps or order.default_laps
    run = unit_run(order, stages, micro_batches, laps)
    build = _Legs(ProgramBuilder(), micro_batches, _per_stage(transfer_ns, stages), run)
    last = Phase.WEIGHT if order.splits_backward else Phase.BACKWARD
    given = {Phase.FORWARD: forward_ns, Phase.BACKWARD: backward_ns, Phase.WEIGHT: weight_ns}
    times = {phase: _per_stage(each, stages) for phase, each in given.items()}
    places = [at_position(order, stages, place) for place in range(stages * laps)]
    for stage, lap in places:
        forward, end = Leg(Phase.FORWARD, stage, lap), Leg(last, stage, lap)
        held = cap or run.in_flight(forward, [end])
        stash = build.program.register(f"stash{lap}{stage}", stage, blocks=held, elements=1)
        build.writes[forward].append(stash)
        build.reads[end].append(stash)
    for (stage, lap), (after, next_lap) in pairwise(places):
        build.connect("activation", Leg(Phase.FORWARD, stage, lap), Leg(Phase.FORWARD, after, next_lap))
        build.connect("gradient", Leg(Phase.BACKWARD, after, next_lap), Leg(Phase.BACKWARD, stage, lap))
    actors = {leg: build.compute(leg, times[leg.phase][leg.stage]) for leg in run.begins}
    updates = _per_stage(update_ns, stages)
    for s in range(stages):
        chunks: Iterable[Chunk] = chunk_order(order, stages, s, micro_batches, laps)
        if cap is not None:
            chunks = backward_first(stages, micro_batches, blocks=cap, backward_time=1)[s]
        turns = [actors[Leg(chunk.phase, s, chunk.lap)] for chunk in chunks]
        if any(updates):
            turns.append(build.program.act(f"U{s}", s, updates[s]))
        build.program.stream(s, "compute", turns)
    return build.program.freeze(stages, num_micro_batches=micro_batches, tokens_per_step=micro_batches)


def _per_stage(given: int | Sequence[int], stages: int) -> Sequence[int]:
    return (given,) * stages if isinstance(given, int) else given


class _Legs:
    """What the legs of a schedule read and write."""

    def __init__(self, program: ProgramBuilder, micro_batches: int, transfer_ns: Sequence[int], run: UnitRun) -> None:
        self.program = program
        self.micro_batches = micro_batches
        self.transfer_ns = transfer_ns
        self.run = run
        self.reads: dict[Leg, list[int]] = {leg: [] for leg in run.begins}
        self.writes: dict[Leg, list[int]] = {leg: [] for leg in run.begins}

    def compute(self, leg: Leg, time_ns: int) -> int:
        """The actor of a leg."""
        name, m = f"{NAMES[leg.phase]}{'_' * leg.lap}{leg.stage}", self.micro_batches
        return self.program.act(name, leg.stage, time_ns, reads=self.reads[leg], writes=self.writes[leg], acts=m)

    def connect(self, name: str, source: Leg, target: Leg) -> None:
        """One register where the stage is the same; else one on either stage, and a stream of its own between them."""
        held = max(2, self.run.in_flight(source, [target], arrives=source.stage != target.stage))
        arrives = self.program.register(f"{name}{target.lap} arrives {target.stage}", target.stage, blocks=held)
        self.reads[target].append(arrives)
        if source.stage == target.stage:
            self.writes[source].append(arrives)
            return
        leaves = self.program.register(f"{name}{source.lap} leaves {source.stage}", source.stage, blocks=2)
        self.writes[source].append(leaves)
        time_ns = self.transfer_ns[min(source.stage, target.stage)]
        way = f"{name}{source.lap} {source.stage}>{target.stage}"
        self.program.channel(way, leaves, arrives, time_ns, acts=self.micro_batches)
