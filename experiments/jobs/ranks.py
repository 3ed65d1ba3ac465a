"""Ranks: what every MPI process of a job does before and after its real work."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.runtime.clocks import ClockReading, Round, on_one_clock, read_rounds
from executor.runtime.measured import measured_timeline
from executor.runtime.transport.mpi import open_world
from executor.runtime.worker import Record, Worker
from experiments.version import VERSION
from strategy.base.errors import PlanError
from strategy.program.program import Program
from strategy.program.timeline import Timeline

if TYPE_CHECKING:
    from mpi4py import MPI

_NAP_S = 0.0005
_ROUNDS = 40
"""Messages there and back by which a clock is read."""
_NAMED = 4
"""Ranks that a message names at most."""


def world(verb: str) -> MPI.Intracomm:
    """All ranks of the job, which do the same.

    Raises:
        EnvironmentLacks: no MPI library can be loaded.
        PlanError: some ranks were started with another verb, or by another version.
    """
    comm = open_world()
    agree(comm, verb=verb)
    return comm


def broadcast(comm: MPI.Intracomm, document: Any) -> Any:
    """What rank 0 has, on all ranks: JSON values. As JSON, since a pickle could run code where it is read."""
    raw = np.frombuffer(json.dumps(document).encode(), np.uint8)
    count = np.array([raw.size], np.int64)
    _await(comm.Ibcast(count))
    text = raw.copy() if comm.rank == 0 else np.empty(int(count[0]), np.uint8)
    _await(comm.Ibcast(text))
    return json.loads(text.tobytes())


def gather(comm: MPI.Intracomm, document: Any) -> list[Any] | None:
    """What every rank has, by rank, on rank 0: JSON values."""
    raw = np.frombuffer(json.dumps(document).encode(), np.uint8)
    counts = np.empty(comm.size, np.int64) if comm.rank == 0 else None
    _await(comm.Igather(np.array([raw.size], np.int64), counts))
    if counts is None:
        _await(comm.Igatherv(raw, None))
        return None
    text = np.empty(int(counts.sum()), np.uint8)
    _await(comm.Igatherv(raw, [text, counts]))
    return [json.loads(part.tobytes()) for part in np.split(text, np.cumsum(counts)[:-1])]


def mean(comm: MPI.Intracomm, figure: float) -> float:
    """The mean of all ranks' figures, on all ranks."""
    total = np.empty(1)
    _await(comm.Iallreduce(np.array([figure]), total))
    return float(total[0]) / comm.size


def longest(comm: MPI.Intracomm, seconds: Sequence[float]) -> list[float]:
    """The longest of all ranks' times, place by place, to a nanosecond, on all ranks."""
    return [found / 1e9 for found in highest(comm, [round(one * 1e9) for one in seconds])]


def highest(comm: MPI.Intracomm, figures: Sequence[int]) -> list[int]:
    """The highest of all ranks' figures, place by place, on all ranks."""
    from mpi4py import MPI

    found = np.empty(len(figures), np.int64)
    _await(comm.Iallreduce(np.array(figures, np.int64), found, MPI.MAX))
    return [int(figure) for figure in found]


def barrier(comm: MPI.Intracomm) -> None:
    """Wait until every rank is here."""
    _await(comm.Ibarrier())


def _await(request: MPI.Request) -> None:
    """Give way, then sleep: a library's blocking call keeps a core busy, which the rank that is waited for may need."""
    begin_s = time.perf_counter()
    while not request.Test():
        if time.perf_counter() - begin_s < _NAP_S:
            os.sched_yield()
        else:
            time.sleep(_NAP_S)


def agree(comm: MPI.Intracomm, **mine: object) -> None:
    """Refuse a job whose ranks differ in any of these things, or in their version of this program.

    Raises:
        PlanError: with everything that they differ in, and which ranks have what.
    """
    said = {"version": VERSION, **{what: str(value) for what, value in mine.items()}}
    told: list[dict[str, str]] = broadcast(comm, gather(comm, said))
    lines = []
    for what in sorted({what for one in told for what in one}):
        ranks: dict[str | None, list[int]] = {}
        for rank, one in enumerate(told):
            ranks.setdefault(one.get(what), []).append(rank)
        if len(ranks) > 1:
            held = "; ".join(f"{value!r} on {_ranks(those)}" for value, those in ranks.items())
            lines.append(f"\n  - {what.replace('_', ' ')}: {held}")
    if lines:
        raise PlanError(f"the ranks do not run the same{''.join(lines)}", hint="start all of them alike")


def _ranks(numbers: Sequence[int]) -> str:
    """At most a few of them."""
    few = ", ".join(map(str, numbers[:_NAMED]))
    return f"rank {few}" if len(numbers) <= _NAMED else f"rank {few} and {len(numbers) - _NAMED} more"


def all_ok(comm: MPI.Intracomm) -> Callable[[bool], bool]:
    """Agreement of all ranks, as checkpoints want it."""
    return lambda ok: all(broadcast(comm, gather(comm, ok)))


def read_clocks(comm: MPI.Intracomm) -> ClockReading:
    """How far the clocks of all ranks are ahead of rank 0's, now. All ranks call it; rank 0's answer is right.

    Processes of a node have one clock: one rank of each asks.
    """
    names = broadcast(comm, gather(comm, os.uname().nodename))
    readings: dict[str, tuple[int, int]] = {names[0]: (0, 0)}
    at_ns = time.perf_counter_ns()
    for rank, name in enumerate(names):
        if name not in readings:
            readings[name] = read_rounds(_rounds(comm, rank)) if comm.rank in (0, rank) else (0, 0)
    ahead, half_width = zip(*(readings[name] for name in names), strict=True)
    return ClockReading(at_ns, ahead, half_width)


def _rounds(comm: MPI.Intracomm, other: int) -> list[Round]:
    """Rank 0 asks, the other tells its time; only these two call it."""
    word, rounds = np.zeros(1, np.int64), []
    for _ in range(_ROUNDS):
        asked_ns = time.perf_counter_ns()
        if comm.rank == 0:
            _poll(comm.Isend(word, dest=other))
            _poll(comm.Irecv(word, source=other))
            rounds.append((asked_ns, int(word[0]), time.perf_counter_ns()))
        else:
            _poll(comm.Irecv(word, source=0))
            word[0] = time.perf_counter_ns()
            _poll(comm.Isend(word, dest=0))
    return rounds or [(0, 0, 0)]


def _poll(request: MPI.Request) -> None:
    """A nap would be longer than the message that is timed."""
    while not request.Test():
        os.sched_yield()


def gather_timeline(
    comm: MPI.Intracomm, program: Program, worker: Worker, steps: int, before: ClockReading
) -> Timeline | None:
    """The measured timeline of all ranks, on rank 0; `before` was read before the first step."""
    after = read_clocks(comm)
    gathered = gather(comm, worker.records)
    if gathered is None:
        return None
    records: list[Record] = []
    for rank, rows in enumerate(gathered):
        mine: list[Record] = [
            (actor, stream, number, tuple(reads), tuple(writes), *times)
            for actor, stream, number, reads, writes, *times in rows
        ]
        records += on_one_clock(rank, mine, before, after)
    return measured_timeline(program, records, steps=steps)


def rank_argv(verb: str, arguments: Sequence[str]) -> list[str]:
    """The command line of one rank that runs `verb` of this installation (`-P`: the current folder shadows nothing)."""
    return [sys.executable, "-P", "-m", "experiments", verb, *arguments]
