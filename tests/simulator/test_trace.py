"""Traces that Perfetto opens, and figures: what is in them, and the same bytes again."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from experiments.bench import simulator_bench as benchmark
from simulator.engine import run
from simulator.figures import memory_figure, timeline_figure
from simulator.memory_timeline import memory_timelines
from simulator.pipelines import pipeline
from simulator.trace import TracedRun, write_trace
from strategy.graph.graph import Phase
from strategy.lowering.memory import allocated
from strategy.program.program import Program
from strategy.program.timeline import Clock, Timeline
from tests.support.long_parameters import long_but
from tests.support.random_programs import live_programs


@pytest.fixture(scope="module")
def program() -> Program:
    return pipeline(3, 4, "1f1b", forward_ns=1001, backward_ns=2003, transfer_ns=107)


@pytest.fixture(scope="module")
def pair(program: Program) -> list[Timeline]:
    """A prediction, and a run that was a little slower."""
    slower = run(program, 2, jitter=lambda actor, number: 3 * actor + number).timeline
    return [run(program, 2).timeline, replace(slower, clock=Clock.MEASURED)]


def trace_events(path: Path, *runs: TracedRun) -> list[dict[str, Any]]:
    write_trace(path, runs)
    return read(path)


def read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]
    return events


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_same_timelines_same_bytes(name: str, program: Program, pair: list[Timeline], tmp_path: Path) -> None:
    runs = [TracedRun.of(timeline, memory_timelines(program, timeline)) for timeline in pair]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        write_trace(tmp_path / folder / name, runs)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert {event["ph"] for event in read(tmp_path / "a" / name)} == {"M", "X", "C"}


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


@pytest.mark.parametrize("name", long_but(["trace.json", "trace.json.gz"], 1))
def test_the_trace_has_every_act_once(name: str, tmp_path: Path) -> None:
    """Of programs that write more events at once than one piece of text holds, too."""
    small = [program for _, program in live_programs(20)]
    for program, steps in [*((program, 3) for program in small), (benchmark.pipeline(8, 256, ops=10), 1)]:
        found = run(program, steps)
        events = trace_events(tmp_path / name, TracedRun.simulated(program, found.acts))
        written = Counter(
            (
                event["name"],
                event["args"].get("step", 0),
                event["args"]["piece"],
                nanoseconds(event["ts"]),
                nanoseconds(event["dur"]),
                nanoseconds(event["args"].get("waited_us", 0)),
                event["cat"],
                (event["pid"], event["tid"]),
            )
            for event in events
            if event["ph"] == "X"
        )
        expected = Counter(
            (
                program.actors[r.actor].name,
                *divmod(r.number, program.actors[r.actor].acts_per_step),
                r.start_ns,
                r.end_ns - r.start_ns,
                r.start_ns - r.ready_ns,
                program.actors[r.actor].kind.value,
                (program.actors[r.actor].rank + 1, r.stream + 1),
            )
            for r in found.timeline.records
        )
        assert written == expected


def test_no_two_acts_overlap_on_a_track(tmp_path: Path) -> None:
    for _, program in live_programs(20):
        traced = TracedRun.of(run(program, 2).timeline)
        tracks: dict[tuple[Any, Any], list[tuple[int, int]]] = defaultdict(list)
        for event in trace_events(tmp_path / "trace.json", traced, traced):
            if event["ph"] == "X":
                begin_ns, length_ns = nanoseconds(event["ts"]), nanoseconds(event["dur"])
                tracks[event["pid"], event["tid"]].append((begin_ns, begin_ns + length_ns))
        assert len(tracks) == 2 * len(traced.streams)
        for spans in tracks.values():
            assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))


def test_trace_names_ranks_streams_and_acts(pair: list[Timeline], tmp_path: Path) -> None:
    events = trace_events(tmp_path / "trace.json", *map(TracedRun.of, pair))
    names = [event["args"] for event in events if event["name"] == "process_name"]
    assert {"name": "rank 2 (simulated)"} in names
    assert {"name": "rank 0 (measured)"} in names
    acts = [event for event in events if event["ph"] == "X"]
    assert len(acts) == sum(len(timeline.records) for timeline in pair)
    last = next(act for act in acts if act["name"] == "B0" and act["args"] == {"step": 1, "piece": 3})
    assert (last["cat"], last["dur"]) == ("compute", 2.003)
    sorts = {event["pid"]: event["args"] for event in events if event["name"] == "process_sort_index"}
    by_name = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert sorted(by_name, key=lambda name: sorts[by_name[name]]["sort_index"])[:2] == [
        "rank 0 (simulated)",
        "rank 0 (measured)",
    ]


def test_counters_follow_the_memory(program: Program, pair: list[Timeline], tmp_path: Path) -> None:
    memory = memory_timelines(program, pair[0])
    events = trace_events(tmp_path / "trace.json", TracedRun.of(pair[0], memory))
    counted = [event for event in events if event["ph"] == "C" and event["pid"] == 1]
    assert [event["args"] for event in counted] == [{"bytes": nbytes} for nbytes in memory[0].nbytes]


def test_timeline_figure_shows_both_clocks_and_every_stream(program: Program, pair: list[Timeline]) -> None:
    phases = {a.name: Phase.FORWARD if a.name[0] == "F" else Phase.BACKWARD for a in program.actors if len(a.name) == 2}
    figure = timeline_figure(pair, phases=phases)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["simulated", "measured"]
    assert [len(axes.get_yticks()) for axes in figure.axes] == [len(program.streams)] * 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "forward",
        "backward",
        "transfer",
        "waits for peers",
    ]
    assert figure.axes[1].get_xlabel() == "time (µs)"
    only = timeline_figure(pair, ranks=[1])
    assert only.axes[0].get_yticklabels()[0].get_text() == "rank 1  compute"
    assert len(only.axes[0].get_yticks()) == sum(stream.rank == 1 for stream in program.streams)


def test_memory_figure_has_a_line_per_rank_and_the_limit(program: Program, pair: list[Timeline]) -> None:
    figure = memory_figure(memory_timelines(allocated(program), pair[0]), limit_bytes=4096)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["rank 0", "allocated", "rank 1", "rank 2", "limit"]
    assert figure.axes[0].get_ylabel() == "live memory (KiB)"


@pytest.mark.long
def test_figures_are_the_same_bytes_again(pair: list[Timeline]) -> None:
    def png() -> bytes:
        buffer = BytesIO()
        timeline_figure(pair).savefig(buffer, format="png", dpi=60)
        return buffer.getvalue()

    assert png() == png()


def test_gradients_of_weights_are_drawn_where_they_are_put_off() -> None:
    program = pipeline(2, 4, "zb-h1", forward_ns=1000, backward_ns=2000, weight_ns=1000)
    letters = {"F": Phase.FORWARD, "B": Phase.BACKWARD, "W": Phase.WEIGHT}
    phases = {actor.name: letters[actor.name[0]] for actor in program.actors if len(actor.name) == 2}
    figure = timeline_figure([run(program, 1).timeline], phases=phases)
    assert [text.get_text() for text in figure.legends[0].get_texts()][:3] == ["forward", "backward", "weight"]
