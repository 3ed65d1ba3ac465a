"""One order under two clocks: programs in the executor, its acts delayed at random, against the simulator.

The programs are random ones, and now and then a pipeline under a schedule.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from executor.runtime.measured import measured_timeline
from executor.runtime.worker import Hooks
from simulator.engine import run as simulate
from simulator.pipelines import pipeline
from strategy.graph.graph import Graph
from strategy.layout.schedule import Schedule
from strategy.lowering.memory import allocated
from strategy.program.program import Program
from strategy.program.timeline import Timeline, Turn, stream_sequences
from tests.campaigns.outcome import Outcome
from tests.support.monitor import check_trace
from tests.support.random_programs import coverage, live_programs
from tests.support.threads import run_loopback

QUOTAS = {"several actors ready at once": 0.5, "rendezvous": 0.5, "dynamic stream that must choose": 0.02}
PIPELINE_EVERY = 10
DELAYS = 20
STEPS = 3
LONGEST_S = 0.0003


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` programs, each under `DELAYS` random delays."""
    outcome = Outcome({**QUOTAS, "pipeline": 1 / PIPELINE_EVERY})
    pipelines = -(-cases // PIPELINE_EVERY)
    for number in range(seed, seed + pipelines):
        program = random_pipeline(number)
        outcome.add(f"pipeline {number}", check(program, range(DELAYS)), ["pipeline", *exercised(program)])
    for number, program in live_programs(cases - pipelines, seed=seed, resources=False):
        outcome.add(f"program {number}", check(program, range(DELAYS)), exercised(program))
    return outcome


def random_pipeline(seed: int) -> Program:
    """A pipeline of two to four stages; the schedules take turns."""
    rng = random.Random(seed)
    schedule, stages = list(Schedule)[seed % len(Schedule)], rng.randint(2, 4)
    count = stages * rng.randint(1, 2) if schedule is Schedule.INTERLEAVED else rng.randint(1, 6)
    return allocated(pipeline(stages, count, schedule))


def exercised(program: Program) -> Iterator[str]:
    """What a program is good for."""
    found = coverage(program)
    if found.most_ready > 1:
        yield "several actors ready at once"
    if found.rendezvous:
        yield "rendezvous"
    if found.contested_dynamic:
        yield "dynamic stream that must choose"


def check(program: Program, delays: Iterable[int]) -> Iterator[str]:
    """Whether the executor, under each delay, does what the simulator does, and nothing that credits forbid."""
    wanted = static_turns(program, simulate(program, STEPS).timeline)
    for seed in delays:
        timeline = run_delayed(program, seed)
        found = static_turns(program, timeline)
        for name, turns in wanted.items():
            if found[name] != turns:
                yield f"delays {seed}: stream {name} did {found[name]}, not {turns}"
        yield from (f"delays {seed}: {problem}" for problem in check_trace(program, timeline.records))


def run_delayed(program: Program, seed: int) -> Timeline:
    """The measured timeline of a run in which acts begin up to 0.3 ms late."""
    rng = random.Random(seed)
    lengths = [[rng.choice((0.0, 0.0, rng.random() * LONGEST_S)) for _ in range(7)] for _ in program.actors]
    hooks = Hooks(delay=lambda actor, number: lengths[actor][number % 7])
    workers = run_loopback(program, Graph({}, ()), {}, _load_nothing, steps=STEPS, hooks=lambda _: hooks, stall_s=20)
    return measured_timeline(program, [row for worker in workers for row in worker.records], steps=STEPS)


def static_turns(program: Program, timeline: Timeline) -> dict[str, tuple[Turn, ...]]:
    """Rank and name of each static stream -> what it did, in order."""
    pairs = zip(program.streams, stream_sequences(timeline), strict=True)
    return {f"{stream.name} of rank {stream.rank}": turns for stream, turns in pairs if not stream.dynamic}


def _load_nothing(task: object, number: int, arrays: object) -> None:
    """Random programs have no tasks; nothing is loaded."""
