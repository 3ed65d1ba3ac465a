"""Timeline: which act ran when. The simulator predicts one and the executor measures one, in the same words.

Times are integer nanoseconds since the start of the run. A timeline carries the names that it needs, so that a
run folder can be read, drawn and compared without the program that made it.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.base.files import read_json, write_atomic
from strategy.base.limits import LARGEST
from strategy.program.program import ActKind, Program

VERSION = 1


class Clock(StrEnum):
    """Which clock timed the acts."""

    SIMULATED = "simulated"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class ActRecord:
    """The `number`-th act of `actor`, in the blocks of its reads and its writes (in the order of its ports).

    `ready_ns` is when this rank itself was ready to act; in a rendezvous the act starts later, at `start_ns`, when
    the last member is ready too.
    """

    actor: int
    stream: int
    number: int
    read_blocks: tuple[int, ...]
    write_blocks: tuple[int, ...]
    start_ns: int
    end_ns: int
    ready_ns: int


@dataclass(frozen=True, slots=True)
class ActorLabel:
    """What a timeline says of an actor."""

    name: str
    rank: int
    kind: ActKind
    acts_per_step: int


@dataclass(frozen=True, slots=True)
class StreamLabel:
    """What a timeline says of a stream."""

    rank: int
    name: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Every act of `steps` steps. Records are ordered by stream, then as they ran; make one with `make_timeline`."""

    clock: Clock
    steps: int
    actors: tuple[ActorLabel, ...]
    streams: tuple[StreamLabel, ...]
    records: tuple[ActRecord, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks that have a stream."""
        return 1 + max((stream.rank for stream in self.streams), default=-1)

    @property
    def shown(self) -> tuple[int, ...]:
        """The ranks that have a stream: all, or those that stand for others."""
        return tuple(sorted({stream.rank for stream in self.streams}))

    @property
    def makespan_ns(self) -> int:
        """When the last act ended."""
        return max((record.end_ns for record in self.records), default=0)


def make_timeline(program: Program, records: Iterable[ActRecord], *, clock: Clock, steps: int) -> Timeline:
    """A timeline of `program`. The records of each stream come in the order in which they ran; ranks may be mixed.

    The sort is stable: acts of one stream that took no time keep their order.
    """
    return Timeline(
        clock=clock,
        steps=steps,
        actors=tuple(ActorLabel(a.name, a.rank, a.kind, a.acts_per_step) for a in program.actors),
        streams=tuple(StreamLabel(stream.rank, stream.name) for stream in program.streams),
        records=tuple(sorted(records, key=lambda record: (record.stream, record.start_ns))),
    )


def from_zero(timeline: Timeline) -> Timeline:
    """The same timeline, shifted so that its first act is ready at 0 (measured clocks start anywhere)."""
    first = min((min(r.ready_ns, r.start_ns) for r in timeline.records), default=0)
    moved = (
        replace(r, start_ns=r.start_ns - first, end_ns=r.end_ns - first, ready_ns=r.ready_ns - first)
        for r in timeline.records
    )
    return replace(timeline, records=tuple(moved))


def step_of(timeline: Timeline, record: ActRecord) -> int:
    """The step, from 0, that an act belongs to."""
    return record.number // timeline.actors[record.actor].acts_per_step


def by_stream(timeline: Timeline) -> tuple[tuple[ActRecord, ...], ...]:
    """The records of each stream, in the order in which they ran."""
    found: list[list[ActRecord]] = [[] for _ in timeline.streams]
    for record in timeline.records:
        found[record.stream].append(record)
    return tuple(tuple(records) for records in found)


Turn = tuple[int, int, tuple[int, ...], tuple[int, ...]]
"""(actor, number, read blocks, write blocks): an act without its times."""


def stream_sequences(timeline: Timeline) -> tuple[tuple[Turn, ...], ...]:
    """What each stream did, in order, without times: equal for the simulator and the executor on static streams."""
    return tuple(
        tuple((r.actor, r.number, r.read_blocks, r.write_blocks) for r in records) for records in by_stream(timeline)
    )


def step_ends_ns(timeline: Timeline) -> tuple[int, ...]:
    """When the last act of each step ended."""
    ends = [0] * timeline.steps
    for record in timeline.records:
        step = step_of(timeline, record)
        ends[step] = max(ends[step], record.end_ns)
    return tuple(ends)


def step_time_ns(timeline: Timeline) -> int:
    """The time from the end of the last step but one to the end of the last; of a single step, its whole time."""
    ends = step_ends_ns(timeline)
    return ends[-1] - ends[-2] if len(ends) > 1 else ends[-1]


def write_timeline(timeline: Timeline, path: Path) -> None:
    """Write JSON, one list per column (zipped if `path` ends in `.gz`); same timeline, same bytes."""
    document = {
        "version": VERSION,
        "clock": timeline.clock.value,
        "steps": timeline.steps,
        "actors": _columns(ActorLabel, timeline.actors),
        "streams": _columns(StreamLabel, timeline.streams),
        "records": _columns(ActRecord, timeline.records),
    }
    write_json(document, path)


def read_timeline(path: Path) -> Timeline:
    """Read what `write_timeline` wrote.

    Raises:
        InputError: the file is missing or too large, is no timeline, or is one of another version.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        got = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise InputError("not a timeline of this version", where=str(path), got=got, expected=f"version {VERSION}")
    try:
        timeline = Timeline(
            clock=Clock(document["clock"]),
            steps=_whole(document["steps"], 1),
            actors=tuple(
                ActorLabel(_text(name), _whole(rank, 0), ActKind(kind), _whole(count, 1))
                for name, rank, kind, count in _rows(ActorLabel, document["actors"])
            ),
            streams=tuple(
                StreamLabel(_whole(rank, 0), _text(name)) for rank, name in _rows(StreamLabel, document["streams"])
            ),
            records=tuple(
                ActRecord(
                    actor=_whole(actor, 0),
                    stream=_whole(stream, 0),
                    number=_whole(number, 0),
                    read_blocks=tuple(_whole(block, 0) for block in reads),
                    write_blocks=tuple(_whole(block, 0) for block in writes),
                    start_ns=_whole(start_ns, -LARGEST),
                    end_ns=_whole(end_ns, -LARGEST),
                    ready_ns=_whole(ready_ns, -LARGEST),
                )
                for actor, stream, number, reads, writes, start_ns, end_ns, ready_ns in _rows(
                    ActRecord, document["records"]
                )
            ),
        )
        _check(timeline)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"a damaged timeline: {error!r}", where=str(path), hint="run again to write it anew"
        ) from error
    return timeline


def _check(timeline: Timeline) -> None:
    """Refuse records of actors, streams or steps that are not there, and more steps than can have been.

    Raises:
        ValueError: there are such.
    """
    if timeline.steps > max(1, len(timeline.records)):
        raise ValueError(f"{timeline.steps} steps of {len(timeline.records)} acts")
    for record in timeline.records:
        known = record.actor < len(timeline.actors) and record.stream < len(timeline.streams)
        if not known or step_of(timeline, record) >= timeline.steps:
            raise ValueError(f"act {record.number} of actor {record.actor} on stream {record.stream} cannot be")


def write_json(document: object, path: Path) -> None:
    """Write compact JSON, zipped if `path` ends in `.gz`; no wall-clock time gets into the bytes."""
    data = (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()
    if path.suffix == ".gz":
        buffer = io.BytesIO()
        with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
            file.write(data)
        data = buffer.getvalue()
    write_atomic(path, data)


def _columns(kind: type, values: Iterable[ActorLabel | StreamLabel | ActRecord]) -> dict[str, list[object]]:
    columns: dict[str, list[object]] = {field.name: [] for field in fields(kind)}
    for value in values:
        for name, column in columns.items():
            column.append(getattr(value, name))
    return columns


def _whole(value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        raise ValueError(f"{str(value)[:40]!r} is no whole number from {least} on")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _rows(kind: type, columns: Mapping[str, list[Any]]) -> Iterable[tuple[Any, ...]]:
    return zip(*(columns[field.name] for field in fields(kind)), strict=True)
