"""The trace of a large program: the events of `trace`, written from arrays, as text that is compressed meanwhile.

An event per act, without the blocks that it uses, of which there are too many.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.act_graph import Integers
from simulator.large import Acts
from strategy.compiled import compiled
from strategy.program import Actor, Program

Bytes = NDArray[np.uint8]
PER_CHUNK = 1 << 17
"""Events that are written at once."""

NUMBERS_NBYTES = 3 * 20 + 24
"""At most, of the digits of an event and of what stands between them."""


def write_large_trace(path: Path, program: Program, acts: Acts) -> None:
    """Write a trace, zipped if `path` ends in `.gz`; same acts, same bytes."""
    zipper = zlib.compressobj(1, zlib.DEFLATED, 31) if path.suffix == ".gz" else None
    with path.open("wb") as file, ThreadPoolExecutor(max_workers=1) as beside:
        written: Future[None] | None = None

        def put(data: bytes) -> None:
            file.write(data if zipper is None else zipper.compress(data))

        for chunk in _chunks(program, acts):
            if written is not None:
                written.result()
            written = beside.submit(put, chunk)
        if written is not None:
            written.result()
        if zipper is not None:
            file.write(zipper.flush())


def _chunks(program: Program, acts: Acts) -> Iterator[bytes]:
    """The text of the document, piece by piece."""
    names = ",".join(json.dumps(event, separators=(",", ":")) for event in _names(program))
    yield f'{{"traceEvents":[{names}'.encode()
    track = {actor: number + 1 for number, stream in enumerate(program.streams) for actor in set(stream.sequence)}
    heads = [_head(actor, track[index]) for index, actor in enumerate(program.actors)]
    first = np.cumsum([0, *map(len, heads)])
    text = np.frombuffer(b"".join(heads), dtype=np.uint8)
    longest = max(map(len, heads), default=0) + NUMBERS_NBYTES
    for begin in range(0, len(acts.actor), PER_CHUNK):
        part = slice(begin, begin + PER_CHUNK)
        buffer = np.empty(longest * PER_CHUNK, dtype=np.uint8)
        size = _events(buffer, text, first, acts.actor[part], acts.number[part], acts.start_ns[part], acts.end_ns[part])
        yield buffer[:size].tobytes()
    yield b'],"displayTimeUnit":"ns"}\n'


def _names(program: Program) -> Iterator[dict[str, object]]:
    for rank in sorted({stream.rank for stream in program.streams}):
        args = {"name": f"rank {rank} (simulated)"}
        yield {"ph": "M", "pid": rank + 1, "tid": 0, "name": "process_name", "args": args}
        yield {"ph": "M", "pid": rank + 1, "tid": 0, "name": "process_sort_index", "args": {"sort_index": rank + 1}}
    for number, stream in enumerate(program.streams):
        track = {"ph": "M", "pid": stream.rank + 1, "tid": number + 1}
        yield {**track, "name": "thread_name", "args": {"name": stream.name}}
        yield {**track, "name": "thread_sort_index", "args": {"sort_index": number}}


def _head(actor: Actor, track: int) -> bytes:
    """An event of an actor up to the digits of its micro-batch."""
    event = {"ph": "X", "pid": actor.rank + 1, "tid": track, "name": actor.name, "cat": actor.kind.value}
    return ("," + json.dumps(event, separators=(",", ":"))[:-1] + ',"args":{"piece":').encode()


@compiled
def _events(
    buffer: Bytes,
    text: Bytes,
    first: Integers,
    actor: Integers,
    number: Integers,
    start_ns: Integers,
    end_ns: Integers,
) -> int:
    """Write events, each after a comma; gives the bytes written."""
    size = 0
    for act in range(len(actor)):
        for k in range(first[actor[act]], first[actor[act] + 1]):
            buffer[size] = text[k]
            size += 1
        size = _digits(buffer, size, number[act])
        for code in (125, 44, 34, 116, 115, 34, 58):  # },"ts":
            buffer[size] = code
            size += 1
        size = _microseconds(buffer, size, start_ns[act])
        for code in (44, 34, 100, 117, 114, 34, 58):  # ,"dur":
            buffer[size] = code
            size += 1
        size = _microseconds(buffer, size, end_ns[act] - start_ns[act])
        buffer[size] = 125
        size += 1
    return size


@compiled
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


@compiled
def _digits(buffer: Bytes, size: int, number: int) -> int:
    length, rest = 1, number // 10
    while rest:
        length += 1
        rest //= 10
    for place in range(length - 1, -1, -1):
        buffer[size + place] = 48 + number % 10
        number //= 10
    return size + length
