"""Timelines: written and read back, queried, and refused when damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.engine import run
from simulator.pipelines import pipeline
from strategy.base.errors import InputError
from strategy.program.timeline import (
    Clock,
    Timeline,
    from_zero,
    make_timeline,
    read_timeline,
    step_ends_ns,
    step_time_ns,
    stream_sequences,
    write_timeline,
)
from tests.support.random_programs import live_programs


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    return run(pipeline(3, 4, "1f1b", transfer_ns=1), 2).timeline


def test_ranks_are_those_that_have_a_stream(timeline: Timeline) -> None:
    assert (timeline.ranks, timeline.shown) == (3, (0, 1, 2))
    last = replace(timeline, streams=tuple(stream for stream in timeline.streams if stream.rank == 2))
    assert (last.ranks, last.shown) == (3, (2,))
    assert (replace(timeline, streams=()).ranks, replace(timeline, streams=()).shown) == (0, ())


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
def test_reads_what_it_wrote_and_writes_the_same_bytes(name: str, timeline: Timeline, tmp_path: Path) -> None:
    first, second = tmp_path / name, tmp_path / f"again.{name}"
    write_timeline(timeline, first)
    write_timeline(read_timeline(first), second)
    assert read_timeline(second) == timeline
    assert first.read_bytes() == second.read_bytes()


def test_every_random_timeline_survives_the_file(tmp_path: Path) -> None:
    for seed, program in live_programs(20):
        found = run(program, 2).timeline
        path = tmp_path / f"{seed}.json"
        write_timeline(found, path)
        assert read_timeline(path) == found


@pytest.mark.parametrize("damage", ["absent", "text", "version", "column", "ragged", "clock"])
def test_damaged_files_are_refused_by_name(damage: str, timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_timeline(timeline, path)
    document = json.loads(path.read_text())
    if damage == "version":
        document["version"] = 0
    elif damage == "column":
        del document["records"]["end_ns"]
    elif damage == "ragged":
        document["records"]["end_ns"].pop()
    elif damage == "clock":
        document["clock"] = "sundial"
    path.write_text("no json" if damage == "text" else json.dumps(document))
    if damage == "absent":
        path.unlink()
    with pytest.raises(InputError, match=r"timeline\.json"):
        read_timeline(path)


@pytest.mark.parametrize(
    ("part", "column", "value"),
    [
        *(
            ("records", column, value)
            for column in ("actor", "stream", "number")
            for value in (-1, 10**6, "x", 1.5, None)
        ),
        *(("records", "start_ns", value) for value in ("x", 1.5, True, 10**30, 1e400)),
        ("records", "read_blocks", 5),
        ("records", "write_blocks", ["x"]),
        *(("actors", "acts_per_step", value) for value in (0, -1, "x")),
        *(("actors", "kind", value) for value in ("magic", 5, [])),
        ("streams", "rank", -1),
        ("streams", "name", 7),
        *(("steps", "", value) for value in (0, -1, 10**12, "2", 1e400, None)),
        ("records", "", []),
        ("actors", "", 3),
    ],
)
def test_wrong_values_are_refused(part: str, column: str, value: object, timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_timeline(timeline, path)
    document = json.loads(path.read_text())
    if column:
        document[part][column][0] = value
    else:
        document[part] = value
    path.write_text(json.dumps(document).replace("Infinity", "1e400"))
    with pytest.raises(InputError, match=r"timeline\.json: a damaged timeline"):
        read_timeline(path)


def test_ranks_may_report_in_any_order(timeline: Timeline) -> None:
    program = pipeline(3, 4, "1f1b", transfer_ns=1)
    by_rank = sorted(timeline.records, key=lambda record: -timeline.actors[record.actor].rank)
    assert make_timeline(program, by_rank, clock=Clock.SIMULATED, steps=2) == timeline


def test_step_ends_and_sequences() -> None:
    timeline = run(pipeline(2, 2, "gpipe"), 3).timeline
    assert step_ends_ns(timeline) == (6, 12, 18)
    assert step_time_ns(timeline) == 6
    sequences = dict(zip((stream.name for stream in timeline.streams), stream_sequences(timeline), strict=True))
    names = [timeline.actors[actor].name for actor, *_ in sequences["compute"][:4]]
    assert names == ["F1", "F1", "B1", "B1"]


def test_from_zero_undoes_a_shift(timeline: Timeline) -> None:
    shifted = tuple(
        replace(r, start_ns=r.start_ns + 77, end_ns=r.end_ns + 77, ready_ns=r.ready_ns + 77) for r in timeline.records
    )
    assert from_zero(replace(timeline, records=shifted)) == timeline
