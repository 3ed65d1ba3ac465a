"""Runs as Chrome trace JSON, which Perfetto opens: a process per rank, a track per stream, memory as a counter.

Format: "Trace Event Format", Google, section "JSON Object Format". Times in the file are microseconds. An event has the
micro-batch of its act as `piece`; its `step`, and for how long it `waited_us` for its peers, where that is not 0.

Programs have millions of acts, so their events are written from arrays, and zipped beside.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.acts import Acts, Integers, acts_of
from simulator.memory_timeline import MemoryTimeline
from strategy.base.compiled import in_place
from strategy.base.files import writing
from strategy.program.program import Actor, Program, Stream
from strategy.program.timeline import ActorLabel, Clock, StreamLabel, Timeline

Event = dict[str, object]
Bytes = NDArray[np.uint8]

PER_PIECE = 1 << 14
"""Events that are written at once."""
ZIPPED = 2
"""Level of compression: events are so much alike that higher ones gain little."""

WORDS = (b',"step":', b',"waited_us":', b'},"ts":', b',"dur":', b"}")
"""What stands between the numbers of an event."""
STEP, WAITED, BEGAN, TOOK, END = range(5)
NUMBERS_NBYTES = 5 * 24 + sum(map(len, WORDS))
"""At most, of the digits of an event and of what stands between them."""


@dataclass(frozen=True, slots=True)
class TracedRun:
    """One run in a trace: whose acts they are, and the memory of some ranks beside them."""

    clock: Clock
    actors: Sequence[Actor | ActorLabel]
    streams: Sequence[Stream | StreamLabel]
    acts: Acts
    memory: Sequence[MemoryTimeline] = ()

    @classmethod
    def simulated(cls, program: Program, acts: Acts, memory: Sequence[MemoryTimeline] = ()) -> TracedRun:
        """Of a program in virtual time."""
        return cls(Clock.SIMULATED, program.actors, program.streams, acts, memory)

    @classmethod
    def of(cls, timeline: Timeline, memory: Sequence[MemoryTimeline] = ()) -> TracedRun:
        """Of a timeline, simulated or measured."""
        return cls(timeline.clock, timeline.actors, timeline.streams, acts_of(timeline), memory)


def write_trace(path: Path, runs: Sequence[TracedRun]) -> None:
    """Write a trace, zipped if `path` ends in `.gz`; same runs, same bytes.

    Args:
        path: where to.
        runs: one, or several to stand side by side (predicted and measured): rank by rank, in this order.
    """
    with writing(path) as file:
        if path.suffix != ".gz":
            file.writelines(_pieces(runs))
            return
        with gzip.GzipFile("", "wb", ZIPPED, file, mtime=0) as zipped, ThreadPoolExecutor(1) as beside:
            last: Future[int] | None = None
            for piece in _pieces(runs):
                if last is not None:
                    last.result()
                last = beside.submit(zipped.write, piece)


def _pieces(runs: Sequence[TracedRun]) -> Iterator[bytes | memoryview]:
    """The text of the document."""
    names = [event for index, found in enumerate(runs) for event in _names(found, index, len(runs))]
    counters = [event for index, found in enumerate(runs) for event in _counters(found, index, len(runs))]
    told = ",".join(json.dumps(event, separators=(",", ":")) for event in (*names, *counters))
    yield f'{{"displayTimeUnit":"ns","traceEvents":[{told}'.encode("ascii")
    for index, found in enumerate(runs):
        yield from _acts(found, index, len(runs))
    yield b"]}\n"


def _process(rank: int, index: int, count: int) -> int:
    """Process ids tell ranks and runs apart, thread ids are stream numbers."""
    return 1 + rank * count + index


def _names(found: TracedRun, index: int, count: int) -> Iterator[Event]:
    for rank in sorted({stream.rank for stream in found.streams}):
        process = _process(rank, index, count)
        name = f"rank {rank} ({found.clock.value})"
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for number, stream in enumerate(found.streams):
        track = {"ph": "M", "pid": _process(stream.rank, index, count), "tid": number + 1}
        yield {**track, "name": "thread_name", "args": {"name": stream.name}}
        yield {**track, "name": "thread_sort_index", "args": {"sort_index": number}}


def _counters(found: TracedRun, index: int, count: int) -> Iterator[Event]:
    for memory in found.memory:
        counter = {"ph": "C", "pid": _process(memory.rank, index, count), "tid": 0, "name": "live memory"}
        for time_ns, nbytes in zip(memory.time_ns, memory.nbytes, strict=True):
            yield {**counter, "ts": time_ns / 1000, "args": {"bytes": nbytes}}


def _acts(found: TracedRun, index: int, count: int) -> Iterator[memoryview]:
    """The events of all acts, each after a comma. A run has a process at least, so that something is before them."""
    acts = found.acts
    track = np.zeros(len(found.actors), dtype=np.int64)
    track[acts.actor] = acts.stream + 1
    heads = [
        _head(actor, _process(actor.rank, index, count), number)
        for actor, number in zip(found.actors, track.tolist(), strict=True)
    ]
    texts = [*WORDS, *heads]
    first = np.concatenate(([0], np.cumsum([len(text) for text in texts])))
    text = np.frombuffer(b"".join(texts), dtype=np.uint8)
    per_step = np.array([actor.acts_per_step for actor in found.actors], dtype=np.int64)
    longest = max(map(len, heads), default=0) + NUMBERS_NBYTES
    for begin in range(0, len(acts), PER_PIECE):
        part = slice(begin, begin + PER_PIECE)
        columns = [column[part] for column in (acts.actor, acts.number, acts.start_ns, acts.end_ns, acts.ready_ns)]
        buffer = np.empty(longest * len(columns[0]), dtype=np.uint8)
        yield buffer[: _events(buffer, text, first, per_step, *columns)].data


def _head(actor: Actor | ActorLabel, process: int, track: int) -> bytes:
    """An event of an actor up to the digits of its micro-batch."""
    event = {"ph": "X", "pid": process, "tid": track, "name": actor.name, "cat": actor.kind.value}
    return ("," + json.dumps(event, separators=(",", ":"))[:-1] + ',"args":{"piece":').encode()


@in_place
def _events(
    buffer: Bytes,
    text: Bytes,
    first: Integers,
    per_step: Integers,
    actor: Integers,
    number: Integers,
    start_ns: Integers,
    end_ns: Integers,
    ready_ns: Integers,
) -> int:
    """Write events; gives the bytes written. Text i is `text[first[i]:first[i + 1]]`: the words, then the heads."""
    size = 0
    for act in range(len(actor)):
        size = _text(buffer, size, text, first, END + 1 + actor[act])
        step = number[act] // per_step[actor[act]]
        size = _digits(buffer, size, number[act] - step * per_step[actor[act]])
        if step:
            size = _text(buffer, size, text, first, STEP)
            size = _digits(buffer, size, step)
        if ready_ns[act] < start_ns[act]:
            size = _text(buffer, size, text, first, WAITED)
            size = _microseconds(buffer, size, start_ns[act] - ready_ns[act])
        size = _text(buffer, size, text, first, BEGAN)
        size = _microseconds(buffer, size, start_ns[act])
        size = _text(buffer, size, text, first, TOOK)
        size = _microseconds(buffer, size, end_ns[act] - start_ns[act])
        size = _text(buffer, size, text, first, END)
    return size


@in_place
def _text(buffer: Bytes, size: int, text: Bytes, first: Integers, index: int) -> int:
    for k in range(first[index], first[index + 1]):
        buffer[size] = text[k]
        size += 1
    return size


@in_place
def _microseconds(buffer: Bytes, size: int, time_ns: int) -> int:
    size = _digits(buffer, size, time_ns // 1000)
    rest = time_ns % 1000
    if rest:
        buffer[size] = 46
        buffer[size + 1] = 48 + rest // 100
        buffer[size + 2] = 48 + rest // 10 % 10
        buffer[size + 3] = 48 + rest % 10
        size += 4
    return size


@in_place
def _digits(buffer: Bytes, size: int, number: int) -> int:
    """Write a number: its last digit first, then all turned round."""
    begin = size
    while size == begin or number:
        buffer[size] = 48 + number % 10
        number //= 10
        size += 1
    for k in range((size - begin) // 2):
        buffer[begin + k], buffer[size - 1 - k] = buffer[size - 1 - k], buffer[begin + k]
    return size
