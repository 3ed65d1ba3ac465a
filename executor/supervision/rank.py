"""A rank: where the code of one process of a job begins, whoever started it, and how it ends.

A rank that fails ends the whole job within seconds, and the cause is told once.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from executor.supervision.abort import abort, exit_code_of
from executor.supervision.environment import (
    RankIdentity,
    find_rank,
    is_launched,
    job_of_this_process,
    name_folder,
    named_folder,
    pmi_descriptor,
    rank_environment,
    scratch_folder,
)
from executor.supervision.failure import FAILURE_FILE, TOLD_FILE, await_relay, no_run_folder, record_or_say, tell_once
from executor.supervision.guard import Post, accept_interrupts, stand_guard
from executor.supervision.heartbeat import identify
from executor.supervision.watchdog import Limits
from strategy.base.errors import SbplanError
from strategy.base.interruption import raised_again

_MOMENT_S = 0.4
"""How long a rank in which MPI failed leaves it to others to name the cause."""
_YIELD_S = 3.0


def run_rank(main: Callable[[], int], *, folder: Path | None = None, limits: Limits | None = None) -> NoReturn:
    """Run `main` as one rank, under guard: the process ends here, with `main`'s exit code or that of its error.

    Call it before NumPy and mpi4py are imported. Works under mpiexec, srun and `launch`, and alone as the only rank.

    Args:
        main: the code of the rank; imports what it needs; returns an exit code.
        folder: the run folder, unless the launcher has named one; by default one of this job in the temporary folder.
        limits: when the watcher takes the rank for stalled.

    Raises:
        InputError: the environment names a rank that cannot be.
        RunError: there can be no run folder.
    """
    rank_environment()
    found = find_rank()
    me = found or RankIdentity(0, 1, 0, 1, os.uname().nodename)
    launched = is_launched()
    job = job_of_this_process()
    given = named_folder() or folder
    chosen = given or scratch_folder(job)
    name_folder(chosen)
    post = Post(
        chosen, job, me.rank, me.local_rank, me.local_size, limits or Limits(), pmi_descriptor(), launched, not given
    )
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        if not launched:
            _drop_older_failure(chosen, alone=found is None)
        stand_guard(post)
    except OSError as error:
        raise no_run_folder(chosen, error) from error
    threading.excepthook = lambda event: _fail(event.exc_value or event.exc_type(), me.rank, chosen, quiet=launched)
    try:
        with raised_again():
            accept_interrupts()
            code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code > 128:
            _fail(error, me.rank, chosen, quiet=launched)
    except BaseException as error:  # noqa: BLE001 (every way out of a rank must end the job)
        _fail(error, me.rank, chosen, quiet=launched)
    sys.exit(code)


def _fail(error: BaseException, rank: int, folder: Path, *, quiet: bool) -> NoReturn:
    """End the whole job because of `error`; of all ranks, the first to come here tells why."""
    code = exit_code_of(error)
    interrupted = code > 128
    expected = interrupted or isinstance(error, SbplanError)
    reason = "interrupted" if interrupted else str(error)
    if not expected:
        reason = "".join(traceback.format_exception_only(error)).strip()
    let_the_dead_be_named(error, folder)
    first = False
    with suppress(OSError):
        if first := record_or_say(folder, rank, reason, exit_code=code):
            if not expected:
                traceback.print_exception(error)
            if not quiet:
                tell_once(folder)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # One ends the others. A second abort would meet a closing mpiexec, which then prints an assertion of its own.
    if first or (interrupted and rank == 0):
        await_relay()
    else:
        time.sleep(_YIELD_S)
    abort(code)


def let_the_dead_be_named(error: BaseException, folder: Path) -> None:
    """Wait a moment for another cause, where MPI failed: a peer that was killed is one, and its guard is about to say.

    MPI copies from the memory of a peer, for instance, and finds no process.
    """
    deadline_s = time.monotonic() + _MOMENT_S
    while _is_of_mpi(error) and not (folder / FAILURE_FILE).exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _is_of_mpi(error: BaseException | None) -> bool:
    """Whether an error of MPI is behind it."""
    while error is not None and type(error).__module__ != "mpi4py.MPI":
        error = error.__cause__
    return error is not None


def _drop_older_failure(folder: Path, *, alone: bool) -> None:
    """Remove a cause that an earlier job left in the same folder: any, or one older than this job's launcher."""
    least_age_s = -math.inf if alone else _age_s(os.getppid()) + 1.0
    for path in (folder / FAILURE_FILE, folder / TOLD_FILE):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > least_age_s:
                path.unlink(missing_ok=True)


def _age_s(pid: int) -> float:
    ticks = identify(pid).start_ticks
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
