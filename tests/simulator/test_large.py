"""Programs as arrays: the figures, the trace and the admission of small ones are those of the event engine."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.simulator_bench import pipeline, through_ports
from simulator.act_graph import act_graph
from simulator.admission import LARGE, admitted, dynamic_order, is_large
from simulator.engine import run
from simulator.large import simulate_large
from simulator.large_trace import write_large_trace
from simulator.simulate import simulate
from simulator.sweep import durations_ns, jitter_ns, sweep, sweep_timeline
from strategy.errors import DeadlockError, InternalError
from strategy.program import Program
from tests.random_programs import live_programs
from tests.simulator.test_engine import delays

FIGURES = ("step_time_s", "bubble_overhead", "idle_share", "exposed_communication_s", "tokens_per_s", "mfu", "hfu")


def programs(count: int) -> list[Program]:
    return [program for _, program in live_programs(count) if dynamic_order(program) is None]


def test_figures_are_those_of_one_step_of_the_engine() -> None:
    found = programs(60)
    assert len(found) >= 20
    for program in found:
        one = replace(program, model_flop_per_step=1000, hardware_flop_per_step=1300)
        slow, fast = simulate(one, steps=1, peak_flop_per_s=1e12), simulate_large(one, peak_flop_per_s=1e12)
        assert [getattr(fast, name) for name in FIGURES] == pytest.approx([getattr(slow, name) for name in FIGURES])
        assert fast.step_time_s == slow.step_time_s == slow.makespan_s
        assert fast.num_tasks == slow.num_tasks
        assert fast.busiest_stream_s <= fast.makespan_lower_bound_s <= fast.step_time_s
        assert all(large >= live for large, live in zip(fast.peak_memory_bytes, slow.peak_memory_bytes, strict=True))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_trace_has_every_act_once_and_ends_with_the_step(name: str, tmp_path: Path) -> None:
    program = through_ports(pipeline(4, 8, ops=3, tensor=2, data=2))
    found = simulate_large(program)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_large_trace(tmp_path / folder / name, program, found.acts)
    data = (tmp_path / "a" / name).read_bytes()
    assert data == (tmp_path / "b" / name).read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    acts = [event for event in events if event["ph"] == "X"]
    assert len(acts) == found.num_tasks
    assert round(max(event["ts"] + event["dur"] for event in acts) * 1000) == round(found.step_time_s * 1e9)
    tracks = defaultdict(list)
    for event in acts:
        tracks[event["pid"], event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
    assert len(tracks) == len(program.streams)
    for spans in tracks.values():
        assert all(begin + length <= after for (begin, length), (after, _) in pairwise(spans))
    records = run(program, 1).timeline.records
    expected = Counter((program.actors[r.actor].name, r.number, r.start_ns, r.end_ns - r.start_ns) for r in records)
    written = (
        (event["name"], event["args"]["piece"], round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in acts
    )
    assert Counter(written) == expected


def test_pipelines_of_the_benchmark_are_simulated_exactly() -> None:
    for program in (pipeline(4, 8), pipeline(3, 5, ops=4), pipeline(4, 6, tensor=2, data=3)):
        graph = act_graph(program, 1)
        extra_ns = jitter_ns(graph, delays(7, 2000))
        swept = sweep_timeline(program, graph, sweep(graph, durations_ns(graph, extra_ns)))
        assert swept == run(program, 1, jitter=delays(7, 2000)).timeline


def test_large_programs_are_admitted_by_their_graph() -> None:
    program = pipeline(16, 512, ops=16)
    assert is_large(program)
    assert sum(actor.acts_per_step for actor in program.actors) >= LARGE
    graph = admitted(program)
    assert graph is not None
    assert simulate_large(program, graph=graph).num_tasks == graph.num_acts
    assert admitted(pipeline(2, 4)) is None


@pytest.mark.parametrize("program", [pipeline(2, 4), pipeline(16, 512, ops=16)], ids=["small", "large"])
def test_what_hangs_is_not_admitted(program: Program) -> None:
    index = next(i for i, stream in enumerate(program.streams) if stream.name == "compute")
    stream = program.streams[index]
    streams = list(program.streams)
    streams[index] = replace(stream, sequence=stream.sequence[::-1])
    with pytest.raises(DeadlockError, match="waits for"):
        admitted(replace(program, streams=tuple(streams)))


def test_a_resource_that_served_too_little_is_noticed() -> None:
    program = through_ports(pipeline(2, 4))
    graph = act_graph(program, 1)
    with pytest.raises(InternalError, match="was busy"):
        simulate_large(program, graph=replace(graph, units=graph.units // 2))
