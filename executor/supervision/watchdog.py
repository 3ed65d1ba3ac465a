"""The watchdog: when a rank dies or stalls, say who, where and why, and end what is left.

`failure.json` in the run folder holds the first cause: whoever learns of it first writes it (the rank itself
when it raises, its guard when it is killed, the watcher otherwise) and tells it; later ones find it taken. An abort
takes with it all who are about to speak, and mpiexec drops what it has not relayed by then, so guards ask for one only
when the cause is told (`ensure_told`) and has left the pipe (`await_relay`). The watcher is one process per node,
outside MPI's reach, so that it outlives whatever the launcher does to the ranks.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import stat
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.supervision.heartbeat import Beat, Process, RankState, process_state, read_heartbeats
from strategy.base.errors import InternalError, RunError, printable

if TYPE_CHECKING:
    from strategy.program.program import Program

FAILURE_FILE = "failure.json"
TOLD_FILE = "failure.told"
_ACTORS_FILE = "actors.json"
_POLL_S = 0.1
_GRACE_S = 1.0
_STDERR = 2
_RELAY_S = 0.2
_TELLING_S = 0.8
"""Most that a teller waits for the reader of its pipe, and others for a teller: guards have two seconds to live when
their ranks are killed."""


@dataclass(frozen=True, slots=True)
class LastBeat:
    """Where one rank was, in words; `quiet_s` is the time since its last act began."""

    rank: int
    pid: int
    state: str
    actor: str
    step: int
    act: int
    quiet_s: float


@dataclass(frozen=True, slots=True)
class Failure:
    """The first cause of a job's end. `rank` is -1 where no rank could be blamed; `time` is Unix time in seconds."""

    rank: int
    pid: int
    actor: str
    step: int
    reason: str
    time: float
    host: str
    exit_code: int
    ranks: tuple[LastBeat, ...]

    @property
    def is_interruption(self) -> bool:
        """Whether somebody wanted the end."""
        return self.exit_code > 128

    def message(self) -> str:
        """One message for people; where a rank stood is left out of errors that a user made and can mend."""
        if self.rank < 0 or self.exit_code not in (RunError.exit_code, InternalError.exit_code):
            return self.reason
        place = f" in {self.actor}, step {self.step}" if self.actor else ""
        return f"rank {self.rank} (pid {self.pid} on {self.host}) failed{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a rank may be without a beat, and stopped by a signal, before the job is ended."""

    stall_s: float = 60.0
    stop_s: float = 5.0


def write_actors(folder: Path, program: Program) -> None:
    """Leave the names of the actors in the run folder, so that a failure names them.

    Raises:
        RunError: the folder cannot be written to.
    """
    names = [(f"{actor.name} ({actor.kind})", actor.acts_per_step) for actor in program.actors]
    try:
        _publish(folder / _ACTORS_FILE, json.dumps(names), replace=True)
    except OSError as error:
        raise no_run_folder(folder, error) from error


def no_run_folder(folder: Path, error: OSError) -> RunError:
    """The complaint about a run folder that the file system refuses."""
    return RunError(
        f"{folder}: no run folder can be kept there: {error.strerror}; free some space, or start from another folder"
    )


def record_or_say(folder: Path, rank: int, reason: str, *, exit_code: int = 6, job: int | None = None) -> bool:
    """As `record_failure`; where the folder cannot be written to, say the cause at once on stderr."""
    try:
        return record_failure(folder, rank, reason, exit_code=exit_code, job=job)
    except OSError:
        with suppress(OSError):
            sys.stderr.write(f"sbplan: {reason}\n")
            sys.stderr.flush()
        return True


def record_failure(folder: Path, rank: int, reason: str, *, exit_code: int = 6, job: int | None = None) -> bool:
    """Write `failure.json` unless a cause is already there; whether this call wrote it.

    Raises:
        OSError: the folder cannot be written to.
    """
    beats = read_heartbeats(folder, job)
    ranks = tuple(_describe(beats, _read_actors(folder)))
    culprit = next((last for last in ranks if last.rank == rank), None)
    failure = Failure(
        rank,
        culprit.pid if culprit else -1,
        culprit.actor if culprit else "",
        culprit.step if culprit else -1,
        reason,
        time.time(),
        socket.gethostname(),
        exit_code,
        ranks,
    )
    return _publish(folder / FAILURE_FILE, json.dumps(asdict(failure), indent=1), replace=False)


def read_failure(folder: Path) -> Failure | None:
    """The recorded cause; None where the job has not failed."""
    try:
        document: dict[str, Any] = json.loads((folder / FAILURE_FILE).read_text())
        return Failure(**{**document, "ranks": tuple(LastBeat(**last) for last in document["ranks"])})
    except FileNotFoundError:
        return None


def tell(folder: Path) -> None:
    """Print the recorded cause on stderr, if anybody still listens; in one write, which mpiexec cannot cut in two."""
    failure = read_failure(folder)
    if failure is not None:
        with suppress(OSError):
            sys.stderr.write(printable(f"sbplan: {failure.message()}\n"))
            sys.stderr.flush()


def tell_once(folder: Path) -> None:
    """Print the recorded cause, unless another process of the job does; leave word that it is told."""
    told = folder / TOLD_FILE
    try:
        told.touch(exist_ok=False)
    except FileExistsError:
        return
    except OSError:
        pass  # a full disk: better told twice than never
    tell(folder)
    with suppress(OSError):
        told.write_text("told\n")


def ensure_told(folder: Path) -> None:
    """Wait until the recorded cause is told; tell it if the one who recorded it does not live to."""
    if not _await_told(folder):
        tell_once(folder)
        _await_told(folder)


def _await_told(folder: Path) -> bool:
    deadline_s = time.monotonic() + _TELLING_S
    while not (found := _is_told(folder)) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return found


def _is_told(folder: Path) -> bool:
    try:
        return (folder / TOLD_FILE).stat().st_size > 0
    except FileNotFoundError:
        return False


def await_relay() -> None:
    """Wait until mpiexec has taken what this process said out of its pipe, and a moment for it to pass that on."""
    deadline_s = time.monotonic() + _TELLING_S
    while _unread_nbytes(_STDERR) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    time.sleep(_RELAY_S)


def _unread_nbytes(descriptor: int) -> int:
    """Bytes that wait in a pipe for its reader; 0 of anything else."""
    with suppress(OSError):
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)
    return 0


def kill_ranks(beats: Iterable[Beat], *, guards: bool = False) -> None:
    """Kill the ranks' processes that still live (their guards only when asked: a killed guard alarms mpiexec)."""
    for beat in beats:
        for process in (beat.process, beat.guard) if guards else (beat.process,):
            if process_state(process) is not None:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGKILL)


def watch(folder: Path, job: int, num_ranks: int, limits: Limits, *, quiet: bool) -> None:
    """Watch this node's `num_ranks` ranks of `job` until all have ended; end them when one of them fails.

    Args:
        folder: the run folder with the heartbeats.
        job: what this job's heartbeats carry; others in the folder are left alone.
        num_ranks: ranks of this node.
        limits: when a rank counts as stalled.
        quiet: leave the telling to the launcher, which reads `failure.json`.
    """
    clock = _Clocks()
    failed_s = 0.0
    while True:
        beats = read_heartbeats(folder, job)
        passed_s = clock.advance(beats)
        living = [beat for beat in beats if not _has_ended(beat)]
        if (failure := read_failure(folder)) is not None:
            failed_s += passed_s
            # An interrupted rank may have a checkpoint to write; its guard ends it when that takes too long.
            if failed_s > _GRACE_S and not failure.is_interruption:
                kill_ranks(living, guards=failed_s > 3 * _GRACE_S)
        elif (cause := clock.find_fault(beats, limits)) and record_or_say(folder, *cause, job=job) and not quiet:
            tell_once(folder)
        if not living and (len(beats) >= num_ranks or clock.idle_s > 10 * _GRACE_S):
            return
        clock.first_dead |= _sleep_until_a_death(beats, _POLL_S)


class _Clocks:
    """How long each rank has been gone, stopped or without a beat, as the watcher itself saw it.

    One look counts for a second at most: when the whole machine sleeps or the scheduler suspends the job, watcher
    and all, nobody is blamed on waking.
    """

    def __init__(self) -> None:
        self.idle_s = 0.0
        self.first_dead: frozenset[int] = frozenset()
        self._now_s = time.monotonic()
        self._gone_s: dict[int, float] = {}
        self._stopped_s: dict[int, float] = {}
        self._quiet_s: dict[int, float] = {}
        self._seen_ns: dict[int, int] = {}

    def advance(self, beats: Sequence[Beat]) -> float:
        """Look at all ranks once; the seconds that this look counts for."""
        before_s, self._now_s = self._now_s, time.monotonic()
        passed_s = min(self._now_s - before_s, 1.0)
        self.idle_s = 0.0 if any(process_state(beat.guard) for beat in beats) else self.idle_s + passed_s
        for beat in beats:
            state = process_state(beat.process) if beat.process.pid else "R"
            fresh = self._seen_ns.get(beat.rank) != beat.time_ns
            self._seen_ns[beat.rank] = beat.time_ns
            for counts, clock in (
                (state is None, self._gone_s),
                (state == "T", self._stopped_s),
                (not fresh and beat.state is RankState.RUNNING, self._quiet_s),
            ):
                clock[beat.rank] = clock.get(beat.rank, 0.0) + passed_s if counts else 0.0
        return passed_s

    def find_fault(self, beats: Sequence[Beat], limits: Limits) -> tuple[int, str] | None:
        """The rank to blame and why; None while all is well.

        Of several dead, the one whose end was seen first; of several quiet, the one that beat last the longest
        ago: the others were taken down, or wait for it.
        """
        unfinished = sorted((beat for beat in beats if beat.state is not RankState.DONE), key=lambda beat: beat.time_ns)
        killed = [beat for beat in unfinished if process_state(beat.guard) is None]
        killed.sort(key=lambda beat: beat.rank not in self.first_dead)
        for found, reason in (
            (killed, "its process was killed"),
            ([b for b in unfinished if self._gone_s[b.rank] > _GRACE_S], "its process ended, its guard is silent"),
            (
                [b for b in unfinished if self._stopped_s[b.rank] > limits.stop_s],
                f"stopped by a signal for more than {limits.stop_s:g} s",
            ),
            (
                [b for b in unfinished if self._quiet_s[b.rank] > limits.stall_s],
                f"no progress for more than {limits.stall_s:g} s",
            ),
        ):
            if found:
                return found[0].rank, reason
        return None


def _has_ended(beat: Beat) -> bool:
    return process_state(beat.guard) is None and process_state(beat.process) is None


def _sleep_until_a_death(beats: Sequence[Beat], timeout_s: float) -> frozenset[int]:
    """Sleep; wake at once when a guard that was alive ends. The ranks whose guards had ended at the waking."""
    ranks = {fd: beat.rank for beat in beats if (fd := _open_process(beat.guard)) is not None}
    try:
        poll = select.poll()
        for descriptor in ranks:
            poll.register(descriptor, select.POLLIN)
        return frozenset(ranks[descriptor] for descriptor, _ in poll.poll(timeout_s * 1e3))
    finally:
        for descriptor in ranks:
            os.close(descriptor)


def _open_process(process: Process) -> int | None:
    """A descriptor that turns readable when the process ends; None where there is none (older kernels, or it ended)."""
    if process_state(process) is None:
        return None
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        return None


def _read_actors(folder: Path) -> Sequence[tuple[str, int]]:
    try:
        return [(str(name), int(acts)) for name, acts in json.loads((folder / _ACTORS_FILE).read_text())]
    except FileNotFoundError:
        return ()


def _describe(beats: Sequence[Beat], actors: Sequence[tuple[str, int]]) -> Iterable[LastBeat]:
    now_ns = time.monotonic_ns()
    for beat in beats:
        name, step = "", 0
        if beat.actor >= 0:
            known = beat.actor < len(actors)
            name, acts_per_step = actors[beat.actor] if known else (f"actor {beat.actor}", 1)
            step = beat.number // acts_per_step + 1
        quiet_s = round((now_ns - beat.time_ns) / 1e9, 3)
        yield LastBeat(beat.rank, beat.process.pid, beat.state.name.lower(), name, step, beat.number, quiet_s)


def _publish(path: Path, text: str, *, replace: bool) -> bool:
    """Write a file that appears whole or not at all; False where it is there already and may not be replaced."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(text + "\n")
        if replace:
            draft.replace(path)
        else:
            path.hardlink_to(draft)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True
