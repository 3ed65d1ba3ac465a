"""The guard: the process that mpiexec starts; the rank is its child.

An mpiexec that sees a process of its own killed prints a banner on stdout, where scripts expect JSON, and ends
the job without saying where the rank was. So what it starts is a thin process that forks the rank before NumPy
and MPI are loaded, waits for it, tells how it ended, and ends by itself. The first guard of a node also starts
the watcher, and another one if that is killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from executor.supervision.abort import ask_for_abort
from executor.supervision.failure import await_relay, ensure_told, read_failure, record_or_say, tell_once
from executor.supervision.heartbeat import Heartbeat, RankState, heartbeat_path, identify, read_heartbeat
from executor.supervision.watchdog import Limits, watch
from strategy.base.errors import RunError, present
from strategy.base.interruption import INTERRUPTS

_SET_DEATH_SIGNAL = 1
_SET_NAME = 15
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Post:
    """What a guard guards: one rank of a job, with its run folder.

    `pmi_descriptor`: where the launcher hears MPI's process management (MPICH's Hydra), if it does.
    `quiet`: a launcher of ours does the telling.
    `scratch`: nobody asked for the folder; a job that ends well removes it.
    """

    folder: Path
    job: int
    rank: int
    local_rank: int
    local_size: int
    limits: Limits
    pmi_descriptor: int | None
    quiet: bool
    scratch: bool


def stand_guard(post: Post) -> None:
    """Fork: returns in the rank; the calling process becomes its guard and ends with the rank's exit code.

    The rank returns with interrupts held back, until it can tell of them: see `accept_interrupts`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    heartbeat = Heartbeat(heartbeat_path(post.folder, post.rank))
    guard = identify(os.getpid())
    heartbeat.start(post.job, guard)
    name_process("sbplan-guard")
    # An interrupt goes to the guards that have a heartbeat; one that comes later finds it written down.
    failure = read_failure(post.folder)
    if failure is not None and failure.is_interruption:
        heartbeat.finish()
        if post.pmi_descriptor is not None:
            ask_for_abort(post.pmi_descriptor, failure.exit_code)
        os._exit(failure.exit_code)
    watcher = _start_watcher(post) if post.local_rank == 0 else None
    child = os.fork()
    if child == 0:
        die_with_parent(guard.pid, signal.SIGKILL)
        os.setpgid(0, 0)
        name_process("sbplan-rank")
        heartbeat.enter(identify(os.getpid()))
        return
    os._exit(_call_or_70(lambda: _wait_for(child, watcher, post, heartbeat)))


def accept_interrupts() -> None:
    """Let through what `stand_guard` has held back from the rank."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


def name_process(name: str) -> None:
    """The name that `ps` and `top` show (where the system has such a call)."""
    _prctl(_SET_NAME, name.encode())


def die_with_parent(parent: int, signum: signal.Signals) -> None:
    """Have the kernel send this process `signum` when `parent`, its parent, ends, however that happens."""
    _prctl(_SET_DEATH_SIGNAL, int(signum))
    if os.getppid() != parent:
        os._exit(128 + signum)


def _prctl(option: int, value: int | bytes) -> None:
    call = getattr(ctypes.CDLL(None), "prctl", None)
    if call is not None:
        call(option, ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value), 0, 0, 0)


def _wait_for(child: int, watcher: int | None, post: Post, heartbeat: Heartbeat) -> int:
    """Wait for the rank, pass signals on to it; the exit code that the rank deserves."""
    interrupted: list[float] = []
    path = heartbeat_path(post.folder, post.rank)

    def pass_on(signum: int, frame: FrameType | None) -> None:
        """Give the rank time to end by itself: it may be writing a checkpoint, or sit in a call that hears nothing."""
        interrupted.append(time.monotonic())
        _report(post, -1, f"interrupted by {signal.Signals(signum).name}", 128 + signum)
        os.kill(child, signum)
        signal.setitimer(signal.ITIMER_REAL, post.limits.grace_s)

    def lose_patience(signum: int, frame: FrameType | None) -> None:
        """Kill the rank, unless it saves: what it has begun to write is what the grace is for."""
        beat = read_heartbeat(path)
        saves = beat is not None and beat.state is RankState.SAVING
        if saves and time.monotonic() - interrupted[0] < post.limits.save_s:
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S)
        else:
            os.kill(child, signal.SIGKILL)

    for signum in INTERRUPTS:
        signal.signal(signum, pass_on)
    signal.signal(signal.SIGALRM, lose_patience)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    # No signal may be passed on once the pid is given back.
    while (ended := _next_to_end()) != child:
        code = os.waitstatus_to_exitcode(os.waitpid(ended, 0)[1])
        if ended == watcher and code < 0:  # killed: nobody would notice a rank that is stopped
            watcher = _start_watcher(post)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, (*INTERRUPTS, signal.SIGALRM))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code >= 0:
        heartbeat.finish()
        return code
    if not interrupted:
        _report(post, post.rank, _describe_signal(-code), RunError.exit_code)
    if not post.quiet:
        ensure_told(post.folder)
        await_relay()
    heartbeat.finish()
    failure = read_failure(post.folder)
    code = failure.exit_code if failure else RunError.exit_code
    if post.pmi_descriptor is not None:
        ask_for_abort(post.pmi_descriptor, code)
    return code


def _next_to_end() -> int:
    """A child that has ended, and is still to be waited for."""
    ended = present(os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT), "a child that has ended")
    return ended.si_pid


def _report(post: Post, rank: int, reason: str, exit_code: int) -> None:
    if record_or_say(post.folder, rank, reason, exit_code=exit_code, job=post.job) and not post.quiet:
        tell_once(post.folder)


def _describe_signal(signum: int) -> str:
    try:
        name = signal.Signals(signum).name
    except ValueError:
        name = f"signal {signum}"
    hint = " (the kernel does so when memory runs out)" if signum == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _start_watcher(post: Post) -> int:
    """Start the node's watcher: in its own session, holding of this process nothing but stderr; its pid."""
    watcher = os.fork()
    if watcher != 0:
        return watcher
    os.setsid()
    name_process("sbplan-watcher")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    for signum in INTERRUPTS:
        signal.signal(signum, signal.SIG_IGN)

    def run() -> int:
        watch(post.folder, post.job, post.local_size, post.limits, quiet=post.quiet)
        if post.scratch and read_failure(post.folder) is None:
            shutil.rmtree(post.folder, ignore_errors=True)
        return 0

    os._exit(_call_or_70(run))


def _call_or_70(body: Callable[[], int]) -> int:
    """Run the last thing that a forked process does; a bug in it must not unwind into the caller's frames."""
    try:
        return body()
    except BaseException:  # noqa: BLE001 (printed; there is nobody left to catch it)
        with suppress(OSError):
            traceback.print_exc(file=sys.stderr)
            sys.stderr.flush()
        return 70
