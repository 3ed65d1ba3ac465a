"""The array sweep against the event engine: the same times to the nanosecond, or a refusal that says why."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from experiments import simulator_bench as benchmark
from simulator.act_graph import SweepRefusal, act_graph, dynamic_order, shared_resource
from simulator.acts import timeline_of
from simulator.engine import Jitter, run
from simulator.pipelines import pipeline
from simulator.sweep import durations_ns, sweep, swept_acts
from strategy.base.errors import DeadlockError, PlanError
from strategy.program.program import ActKind, Actor, Port, Program, Stream, Work
from strategy.program.timeline import Timeline
from tests.simulator.test_engine import delays, live_programs, straggling
from tests.support.random_programs import coverage, random_program


def swept(program: Program, steps: int, jitter: Jitter | None = None) -> Timeline:
    graph = act_graph(program, steps)
    extra_ns = None if jitter is None else jitter(graph.actor, graph.number)
    return timeline_of(program, swept_acts(program, graph, sweep(graph, durations_ns(graph, extra_ns))))


def with_own_links(program: Program) -> Program:
    """Every stream has links of its own: bytes move, and nothing is shared."""
    stream_of = {actor: index for index, stream in enumerate(program.streams) for actor in stream.sequence}
    actors = list(program.actors)
    for index, actor in enumerate(actors):
        demands = tuple((f"{name}:{stream_of[index]}", nbytes) for name, nbytes in actor.work.demands)
        actors[index] = replace(actor, work=Work(actor.work.latency_ns, demands))
    streams = range(len(program.streams))
    links = {f"{name}:{stream}": rate for name, rate in program.resources.items() for stream in streams}
    return replace(program, actors=tuple(actors), resources=links)


def test_the_sweep_is_the_engine_on_500_random_programs() -> None:
    """Every start, end and readiness, of three steps, with jitter and stragglers; what was covered is printed."""
    seen: Counter[str] = Counter()
    seed = 0
    while seen["swept"] < 500:
        seed += 1
        program = with_own_links(random_program(seed, resources=bool(seed % 2)))
        found = coverage(program) if dynamic_order(program) is None else None
        if found is None or not found.live:
            seen.update(refused=found is None, hangs=found is not None)
            continue
        jitter = (None, delays(seed, 900), straggling(seed, program))[seed % 3]
        steps = 1 + seed % 5 % 3
        assert swept(program, steps, jitter) == run(program, steps, jitter=jitter).timeline, seed
        seen.update(
            swept=1,
            jitter=seed % 3 == 1,
            stragglers=seed % 3 == 2,
            several_steps=steps > 1,
            several_ready=found.most_ready > 1,
            rendezvous=found.rendezvous > 0,
            large_rendezvous=found.largest_rendezvous > 2,
            state=found.states > 0,
            rates=found.rates > 1,
            blocks=found.several_blocks,
            dynamic_of_one=found.dynamic_streams > 0,
            bytes=any(actor.work.demands for actor in program.actors),
        )
    print(f"{seed} seeds: {dict(sorted(seen.items()))}")
    assert min(seen[name] for name in seen if name != "hangs") >= 100


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "oneflow", "interleaved", "zb-h1", "zbv"])
def test_pipelines(schedule: str) -> None:
    program = pipeline(4, 8, schedule, forward_ns=7, backward_ns=13, weight_ns=5, transfer_ns=3)
    for jitter in (None, delays(1, 40), straggling(2, program)):
        assert swept(program, 2, jitter) == run(program, 2, jitter=jitter).timeline


def test_one_graph_many_durations() -> None:
    program = pipeline(4, 8, "1f1b", forward_ns=7, backward_ns=13)
    graph = act_graph(program, 2)
    for factor in (1, 2, 5):
        slower = replace(
            program,
            actors=tuple(replace(a, work=Work(factor * a.work.latency_ns, a.work.demands)) for a in program.actors),
        )
        times = sweep(graph, factor * durations_ns(graph))
        assert times.makespan_ns == run(slower, 2).timeline.makespan_ns


def test_what_depends_on_timing_is_refused_by_name() -> None:
    refused: Counter[str] = Counter()
    for _, program in live_programs(200):
        if dynamic_order(program) is not None:
            refused["order"] += 1
            with pytest.raises(SweepRefusal, match="the event engine takes it"):
                act_graph(program, 1)
        elif shared_resource(program) is not None:
            refused["resource"] += 1
            graph = act_graph(program, 1)
            with pytest.raises(
                SweepRefusal, match=r"resource link\d is shared by streams .*; the event engine takes it"
            ):
                sweep(graph, durations_ns(graph))
    assert min(refused.values()) >= 10

    loaders = tuple(Actor(name, 0, ActKind.LOAD) for name in ("tokens", "targets"))
    with pytest.raises(SweepRefusal, match=r"dynamic stream load of rank 0 takes its 2 actors in the order of events"):
        act_graph(Program(1, (), loaders, (Stream(0, "load", (0, 1), dynamic=True),)), 1)


def beside(first: tuple[str, ...], second: tuple[str, ...], *, together: bool) -> Program:
    """Two actors on two streams, or on one, that move bytes through links."""
    works = (Work(1, tuple((name, 1000) for name in names)) for names in (first, second))
    actors = tuple(Actor(f"a{i}", 0, ActKind.COMPUTE, work=work) for i, work in enumerate(works))
    streams = (Stream(0, "one", (0, 1)),) if together else (Stream(0, "one", (0,)), Stream(0, "two", (1,)))
    return Program(1, (), actors, streams, {"x": 1e9, "y": 3e9})


def test_a_resource_that_one_stream_uses_is_not_shared() -> None:
    for program in (
        beside(("x",), ("x", "y"), together=True),
        beside(("x",), ("y",), together=False),
        beside((), ("x",), together=False),
    ):
        assert swept(program, 2) == run(program, 2).timeline
    graph = act_graph(beside(("x",), ("x", "y"), together=False), 2)
    with pytest.raises(SweepRefusal, match=r"resource x is shared by streams one \(rank 0\) and two"):
        sweep(graph, durations_ns(graph))


def test_a_program_that_hangs_is_refused_with_its_cycle() -> None:
    hangs = 0
    for seed in range(200):
        program = random_program(seed, resources=False, swap_probability=0.5)
        if not coverage(program).live and dynamic_order(program) is None:
            hangs += 1
            with pytest.raises(DeadlockError, match="waits for"):
                act_graph(program, 2)
    assert hangs >= 20


def test_what_is_inconsistent_is_refused() -> None:
    program = pipeline(2, 4, "1f1b")
    short = replace(program.streams[0], sequence=program.streams[0].sequence[1:])
    with pytest.raises(PlanError, match="another number of times than it acts"):
        act_graph(replace(program, streams=(short, *program.streams[1:])), 1)
    unwritten = replace(program.actors[0], reads=(Port(len(program.registers)),))
    orphan = replace(program.registers[0], name="orphan")
    with pytest.raises(DeadlockError, match="can never act"):
        act_graph(replace(program, registers=(*program.registers, orphan), actors=(unwritten, *program.actors[1:])), 1)


def test_random_durations_stay_ordered() -> None:
    """More time for any act never makes the run shorter (max-plus is monotone)."""
    rng = random.Random(5)
    graph = act_graph(pipeline(6, 20, "1f1b", forward_ns=50, backward_ns=90, transfer_ns=10), 2)
    base = durations_ns(graph)
    before = sweep(graph, base)
    for _ in range(20):
        longer = base + np.array([rng.choice((0, 0, 30)) for _ in range(graph.num_nodes)])
        after = sweep(graph, longer)
        assert (after.end_ns >= before.end_ns).all()


def test_pipelines_of_the_benchmark_are_simulated_exactly() -> None:
    for program in (
        benchmark.pipeline(4, 8),
        benchmark.pipeline(3, 5, ops=4),
        benchmark.pipeline(4, 6, tensor=2, data=3),
    ):
        assert swept(program, 1, delays(7, 2000)) == run(program, 1, jitter=delays(7, 2000)).timeline
