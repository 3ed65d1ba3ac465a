"""Timelines as Chrome trace JSON, which Perfetto opens: a process per rank, a track per stream, memory as a counter.

Format: "Trace Event Format", Google, section "JSON Object Format". Times in the file are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from simulator.memory_timeline import MemoryTimeline
from strategy.timeline import Timeline, step_of, write_json

Event = dict[str, object]


def write_trace(path: Path, timelines: Sequence[Timeline], *, memory: Sequence[Sequence[MemoryTimeline]] = ()) -> None:
    """Write a trace, zipped if `path` ends in `.gz`; same timelines, same bytes.

    Args:
        path: where to.
        timelines: one, or several to stand side by side (predicted and measured): rank by rank, in this order.
        memory: for each timeline, the memory of its ranks; or nothing.
    """
    write_json({"traceEvents": trace_events(timelines, memory=memory), "displayTimeUnit": "ns"}, path)


def trace_events(timelines: Sequence[Timeline], *, memory: Sequence[Sequence[MemoryTimeline]] = ()) -> list[Event]:
    """The events of a trace. Process ids tell ranks and timelines apart, thread ids are stream numbers."""
    events: list[Event] = []
    for index, timeline in enumerate(timelines):
        events.extend(_names(timeline, index, len(timelines)))
        events.extend(_acts(timeline, index, len(timelines)))
    for index, ranks in enumerate(memory):
        for found in ranks:
            events.extend(_counter(found, _process(found.rank, index, len(timelines))))
    return events


def _process(rank: int, index: int, count: int) -> int:
    return 1 + rank * count + index


def _names(timeline: Timeline, index: int, count: int) -> Iterator[Event]:
    for rank in timeline.shown:
        process = _process(rank, index, count)
        name = f"rank {rank} ({timeline.clock.value})"
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for number, stream in enumerate(timeline.streams):
        track = {"ph": "M", "pid": _process(stream.rank, index, count), "tid": number + 1}
        yield {**track, "name": "thread_name", "args": {"name": stream.name}}
        yield {**track, "name": "thread_sort_index", "args": {"sort_index": number}}


def _acts(timeline: Timeline, index: int, count: int) -> Iterator[Event]:
    for record in timeline.records:
        actor = timeline.actors[record.actor]
        yield {
            "ph": "X",
            "pid": _process(actor.rank, index, count),
            "tid": record.stream + 1,
            "name": actor.name,
            "cat": actor.kind.value,
            "ts": record.start_ns / 1000,
            "dur": (record.end_ns - record.start_ns) / 1000,
            "args": {
                "step": step_of(timeline, record),
                "piece": record.number % actor.acts_per_step,
                "read_blocks": list(record.read_blocks),
                "write_blocks": list(record.write_blocks),
                "waited_us": (record.start_ns - record.ready_ns) / 1000,
            },
        }


def _counter(memory: MemoryTimeline, process: int) -> Iterator[Event]:
    for time_ns, nbytes in zip(memory.time_ns, memory.nbytes, strict=True):
        counter = {"ph": "C", "pid": process, "tid": 0, "name": "live memory"}
        yield {**counter, "ts": time_ns / 1000, "args": {"bytes": nbytes}}
