"""Launching: mpiexec from an ordinary process. Of what it writes to stdout, JSON lines pass and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from executor.supervision.environment import find_mpiexec, find_rank, launcher_environment
from executor.supervision.failure import FAILURE_FILE, TOLD_FILE, no_run_folder, read_failure, record_or_say, tell
from executor.supervision.guard import die_with_parent
from executor.supervision.heartbeat import RankState, process_state, read_heartbeats
from executor.supervision.watchdog import kill_ranks
from strategy.base.errors import InputError, RunError
from strategy.base.interruption import INTERRUPTS

_TOLD_S = 3.0
_BANNER = (b"=", b"YOUR APPLICATION TERMINATED", b"This typically refers to", b"Please see the FAQ page")


def launch(argv: Sequence[str], ranks: int, *, folder: Path, mpiexec: Path | None = None) -> int:
    """Run `argv` on `ranks` ranks of this machine; relay the JSON lines of their stdout, all else goes to stderr.

    Args:
        argv: the command of one rank, which calls `run_rank`.
        ranks: how many.
        folder: the run folder; created if need be, and cleared of what an earlier job told there.
        mpiexec: instead of `find_mpiexec()`.

    Returns:
        The exit code: 0, that of the first rank that failed, 6 when one was killed, 128 + n after a signal.

    Raises:
        InputError: `ranks` below one, or this process is itself a rank.
        EnvironmentLacks: no mpiexec.
        RunError: there can be no run folder, or stdout cannot be written to.
    """
    if ranks < 1:
        raise InputError("no ranks to launch", where="ranks", got=ranks, expected="at least 1")
    if find_rank() is not None:
        raise InputError("already under mpiexec", where="launch", hint="start one or the other, not one in the other")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in (folder / FAILURE_FILE, folder / TOLD_FILE, *folder.glob("heartbeat.*")):
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise no_run_folder(folder, error) from error
    parent = os.getpid()
    process = subprocess.Popen(
        [str(mpiexec or find_mpiexec()), "-n", str(ranks), *argv],
        stdout=subprocess.PIPE,
        env=launcher_environment(ranks, folder),
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
    )
    with _forward_signals(process, folder) as received:
        if process.stdout is not None:
            _relay_json(process.stdout, folder)
        code = process.wait()
    if received:
        tell(folder)
        return 128 + received[0]
    return _account_for(code, folder) if code else 0


def _account_for(code: int, folder: Path) -> int:
    """After an abnormal end: wait for the cause to be written, or find it; print it; the job's exit code."""
    deadline_s = time.monotonic() + _TOLD_S
    while read_failure(folder) is None and time.monotonic() < deadline_s and _somebody_lives(folder):
        time.sleep(0.05)
    beats = read_heartbeats(folder)
    unfinished = [beat for beat in beats if beat.state is not RankState.DONE]
    if read_failure(folder) is None:
        if beats and not unfinished and code > 0:
            return code
        culprit = min(unfinished, key=lambda beat: beat.time_ns).rank if unfinished else -1
        record_or_say(folder, culprit, f"mpiexec ended the job with code {code}")
    kill_ranks(unfinished, guards=True)
    tell(folder)
    failure = read_failure(folder)
    return failure.exit_code if failure else 6


def _somebody_lives(folder: Path) -> bool:
    """Whether a cause may still come: a rank that never said how it ended."""
    return any(beat.state is not RankState.DONE for beat in read_heartbeats(folder))


def _relay_json(lines: Iterable[bytes], folder: Path) -> None:
    """Copy a stdout line by line, until it ends: JSON documents to ours, the launcher's own talk to stderr.

    Hydra's banner is no news where the cause is written down: it tells with what signal its helpers were ended.
    """
    for line in lines:
        if _is_of_banner(line) and read_failure(folder) is not None:
            continue
        stream = sys.stdout if _is_json(line) else sys.stderr
        try:
            stream.write(line.decode(errors="replace"))
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise RunError(f"what the ranks say cannot be passed on: {error.strerror}") from error


def _is_of_banner(line: bytes) -> bool:
    """Whether a line may belong to what Hydra says of processes that were killed."""
    return not line.strip() or line.startswith(_BANNER)


def _is_json(line: bytes) -> bool:
    if not line.lstrip().startswith((b"{", b"[")):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes], folder: Path) -> Iterator[list[int]]:
    """Pass interrupts on while mpiexec runs; the list holds those that came. On an error, end it.

    The first goes to the ranks, through their guards, so that they can write what they must; mpiexec would kill
    them. Where there are none yet, and from the second on, it goes to mpiexec.
    """
    received: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        record_or_say(folder, -1, f"interrupted by {signal.Signals(signum).name}", exit_code=128 + signum)
        guards = [beat.guard for beat in read_heartbeats(folder) if process_state(beat.guard) is not None]
        if len(received) > 1 or not guards:
            process.send_signal(signum)
            return
        for guard in guards:
            with suppress(ProcessLookupError):
                os.kill(guard.pid, signum)

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {signum: signal.signal(signum, forward) for signum in INTERRUPTS} if in_main_thread else {}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()
