"""Failures: the first cause of a job's end, written down once and told once.

`failure.json` in the run folder holds the first cause: whoever learns of it first writes it (the rank itself
when it raises, its guard when it is killed, the watcher otherwise) and tells it; later ones find it taken. An abort
takes with it all who are about to speak, and mpiexec drops what it has not relayed by then, so guards ask for one only
when the cause is told (`ensure_told`) and has left the pipe (`await_relay`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
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

from executor.supervision.heartbeat import Beat, RankState, read_heartbeats
from strategy.base.errors import InternalError, RunError, printable

if TYPE_CHECKING:
    from strategy.program.program import Program

FAILURE_FILE = "failure.json"
TOLD_FILE = "failure.told"
_ACTORS_FILE = "actors.json"
_STDERR = 2
_LONG_S = 1.5
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES}
_NAMED = 3
"""Ranks beside the failed one that a message tells of at most."""
_OWING = [state.name.lower() for state in (RankState.RUNNING, RankState.WAITING)]
_RELAY_S = 0.2
_TELLING_S = 0.8
"""Most that a teller waits for the reader of its pipe, and others for a teller: guards have two seconds to live when
their ranks are killed."""


@dataclass(frozen=True, slots=True)
class LastBeat:
    """Where one rank was, in words; `quiet_s` is the time since its last act began, `waits_for` what it lacked."""

    rank: int
    pid: int
    state: str
    actor: str
    step: int
    act: int
    quiet_s: float
    waits_for: str = ""

    def __str__(self) -> str:
        place = f"{self.actor}, step {self.step}" if self.actor else "no act yet"
        wants = f" ({self.waits_for})" if self.waits_for else ""
        return f"rank {self.rank} {self.state} in {place}, for {self.quiet_s:.1f} s{wants}"


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
        return f"rank {self.rank} (pid {self.pid} on {self.host}) failed{place}: {self.reason}{self._peers()}"

    def _peers(self) -> str:
        """Where the others were, if the failed rank was quiet so long that it may have waited for one of them."""
        culprit = next((last for last in self.ranks if last.rank == self.rank), None)
        if culprit is None or culprit.quiet_s < _LONG_S or culprit.state not in _OWING:
            return ""
        others = sorted((last for last in self.ranks if last.rank != self.rank), key=lambda last: -last.quiet_s)
        more = f"; and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return "".join(f"; {last}" for last in others[:_NAMED]) + more


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
    """Write `failure.json` unless a cause is already there; whether this call is the one that brings the cause.

    Where the folder cannot be written to, the cause is said at once on stderr.
    """
    failure = _failure(folder, rank, reason, exit_code, job)
    try:
        return _publish(folder / FAILURE_FILE, json.dumps(asdict(failure), indent=1), replace=False)
    except OSError:
        _say(failure)
        return True


def _failure(folder: Path, rank: int, reason: str, exit_code: int, job: int | None) -> Failure:
    beats = read_heartbeats(folder, job)
    ranks = tuple(_describe(beats, _read_actors(folder)))
    culprit = next((last for last in ranks if last.rank == rank), None)
    return Failure(
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


def read_failure(folder: Path) -> Failure | None:
    """The recorded cause; None where the job has not failed, or the cause is only half written."""
    try:
        document: dict[str, Any] = json.loads((folder / FAILURE_FILE).read_text())
        return Failure(**{**document, "ranks": tuple(LastBeat(**last) for last in document["ranks"])})
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def tell(folder: Path) -> None:
    """Print the recorded cause on stderr, if anybody still listens; in one write, which mpiexec cannot cut in two."""
    failure = read_failure(folder)
    if failure is not None:
        _say(failure)


def _say(failure: Failure) -> None:
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
        state = beat.state.name.lower()
        yield LastBeat(beat.rank, beat.process.pid, state, name, step, beat.number, quiet_s, beat.waits_for)


def _publish(path: Path, text: str, *, replace: bool) -> bool:
    """Write a file that appears whole or not at all; False where it is there already and may not be replaced."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    try:
        draft.write_text(text + "\n")
        if replace:
            draft.replace(path)
        else:
            _link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _link(draft: Path, path: Path) -> None:
    """Give the draft another name unless that is taken; where the file system knows no links, copy it there.

    Raises:
        FileExistsError: the name is taken.
        OSError: the file system refuses.
    """
    try:
        path.hardlink_to(draft)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with path.open("xb") as file:
            try:
                file.write(draft.read_bytes())
                file.flush()
            except OSError:
                path.unlink()  # half a cause is none, and would keep others from telling theirs
                raise
