"""Heartbeats: where each rank is, readable by others even after the rank was killed.

A rank maps one small file, `heartbeat.<rank>` in the run folder, and writes into it at every act: about a
microsecond and no system call. The pages belong to the file, so what a killed rank wrote last stays readable.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

_MAGIC = b"SBH1"
_JOB = struct.Struct("<4sxxxxQ")
_PROCESS = struct.Struct("<qq")
_BEAT = struct.Struct("<qqqq")
_GUARD_AT = _JOB.size
_RANK_AT = _GUARD_AT + _PROCESS.size
_BEAT_AT = _RANK_AT + _PROCESS.size
_TEXT_AT = _BEAT_AT + _BEAT.size
_TEXT_NBYTES = 240
_NBYTES = _TEXT_AT + _TEXT_NBYTES


class RankState(IntEnum):
    """What a rank does: `RUNNING` is inside an act, or between two; `WAITING` has long found nothing to do.

    `SAVING` writes what outlives the job, and has no acts to tell of meanwhile. `DONE` means that the process ended by
    itself, well or not.
    """

    STARTING = 0
    RUNNING = 1
    DONE = 2
    WAITING = 3
    SAVING = 4


@dataclass(frozen=True, slots=True)
class Process:
    """One process for good: a pid is reused some day, a pid with its start time (in clock ticks) is not."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class Beat:
    """What one heartbeat file says.

    `actor` is -1 before the first act; `time_ns` is the machine's monotonic clock; `waits_for` is what a waiting rank
    waits for, for people.
    """

    rank: int
    job: int
    guard: Process
    process: Process
    state: RankState
    actor: int
    number: int
    time_ns: int
    waits_for: str = ""


class Heartbeat:
    """The writing side, held by one rank (its guard writes the first and the last word).

    Args:
        path: `heartbeat_path(folder, rank)`; created if need be.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size != _NBYTES:
                # Written, not only lengthened: on a full disk a page without a block would kill whoever beats.
                os.ftruncate(descriptor, 0)
                os.write(descriptor, bytes(_NBYTES))
            self._map = mmap.mmap(descriptor, _NBYTES)
        finally:
            os.close(descriptor)

    def start(self, job: int, guard: Process) -> None:
        """Wipe what an earlier job left and say who guards this rank."""
        self._map[:] = bytes(_NBYTES)
        self._put(_GUARD_AT, _PROCESS.pack(guard.pid, guard.start_ticks))
        self._put(_BEAT_AT, _BEAT.pack(-1, 0, time.monotonic_ns(), RankState.STARTING))
        self._put(0, _JOB.pack(_MAGIC, job))

    def enter(self, process: Process) -> None:
        """Say which process is the rank."""
        self._put(_RANK_AT, _PROCESS.pack(process.pid, process.start_ticks))

    def beat(self, actor: int, number: int) -> None:
        """The `number`-th act of `actor` begins now."""
        self._put(_BEAT_AT, _BEAT.pack(actor, number, time.monotonic_ns(), RankState.RUNNING))

    def wait(self, what: str) -> None:
        """Nothing has happened for long, for want of `what`; the last beat stays, and the next one ends the waiting."""
        self._put(_TEXT_AT, what.encode()[:_TEXT_NBYTES].ljust(_TEXT_NBYTES, b"\0"))
        self._turn(RankState.WAITING)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Meanwhile the rank saves; beginning and end are signs of life."""
        self._turn(RankState.SAVING, time.monotonic_ns())
        try:
            yield
        finally:
            self._turn(RankState.RUNNING, time.monotonic_ns())

    def finish(self) -> None:
        """The rank has ended by itself; its last beat stays."""
        self._turn(RankState.DONE)

    def _turn(self, state: RankState, now_ns: int | None = None) -> None:
        actor, number, time_ns, _ = _BEAT.unpack_from(self._map, _BEAT_AT)
        self._put(_BEAT_AT, _BEAT.pack(actor, number, time_ns if now_ns is None else now_ns, state))

    def _put(self, begin: int, packed: bytes) -> None:
        """In one copy: `pack_into` clears the place first, and a reader, or a kill, would find the zeros."""
        self._map[begin : begin + len(packed)] = packed


def heartbeat_path(folder: Path, rank: int) -> Path:
    """Where the heartbeat of `rank` lies in a run folder."""
    return folder / f"heartbeat.{rank}"


def read_heartbeat(path: Path) -> Beat | None:
    """The last beat in `path`; None where there is none (yet)."""
    try:
        data = path.read_bytes()
        rank = int(path.name.removeprefix("heartbeat."))
    except (OSError, ValueError):
        return None
    if len(data) != _NBYTES:
        return None
    magic, job = _JOB.unpack_from(data, 0)
    if magic != _MAGIC:
        return None
    guard = Process(*_PROCESS.unpack_from(data, _GUARD_AT))
    process = Process(*_PROCESS.unpack_from(data, _RANK_AT))
    actor, number, time_ns, state = _BEAT.unpack_from(data, _BEAT_AT)
    waiting = RankState(state) is RankState.WAITING
    text = data[_TEXT_AT:].rstrip(b"\0").decode(errors="replace") if waiting else ""
    return Beat(rank, job, guard, process, RankState(state), actor, number, time_ns, text)


def read_heartbeats(folder: Path, job: int | None = None) -> Sequence[Beat]:
    """The beats of all ranks in `folder`, by rank; only those of `job` where it is given."""
    beats = [beat for path in folder.glob("heartbeat.*") if (beat := read_heartbeat(path)) is not None]
    return sorted((beat for beat in beats if job in (None, beat.job)), key=lambda beat: beat.rank)


def identify(pid: int) -> Process:
    """The running process `pid`; its start time is 0 where the system does not tell."""
    fields = _stat(pid)
    return Process(pid, int(fields[19]) if fields else 0)


def process_state(process: Process) -> str | None:
    """The kernel's letter for `process` (`R` running, `S` asleep, `T` stopped, ...); None once it has ended."""
    fields = _stat(process.pid)
    if not fields or int(fields[19]) != process.start_ticks or fields[0] in ("Z", "X"):
        return None
    return fields[0]


def _stat(pid: int) -> Sequence[str]:
    """Fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ()
