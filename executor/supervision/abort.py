"""Abort: one rank ends all others, once it has said why.

A rank that raises and leaves would let the others wait for it: MPI ends no job by itself before they give up.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from executor.supervision.environment import pmi_descriptor
from executor.supervision.failure import await_relay
from strategy.base.errors import InternalError


def exit_code_of(error: BaseException) -> int:
    """The code of an error; signals unwind as KeyboardInterrupt, or as SystemExit with 128 + n."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return int(getattr(error, "exit_code", InternalError.exit_code))


def abort(code: int) -> NoReturn:
    """Have MPI end the other ranks, and end. MPI's abort may return, and may hang: hence the alarm.

    The cause is told by now, so MPI's own announcement goes nowhere. Where MPI does not run here yet, another rank
    may wait for this one in MPI_Init, deaf to signals: the launcher is asked to end it.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        signal.alarm(5)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        mpi.COMM_WORLD.Abort(code)
    elif (descriptor := pmi_descriptor()) is not None:
        ask_for_abort(descriptor, code)
    os._exit(code)


def ask_for_abort(descriptor: int, code: int) -> None:
    """Say in PMI-1 what MPI_Abort says: Hydra then ends the other ranks without its banner on stdout."""
    with suppress(OSError):
        os.write(descriptor, f"cmd=abort exitcode={code}\n".encode())


def abort_on_exception(rank: int) -> None:
    """From now on an exception that nobody catches ends all ranks, when its traceback has been told."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        told = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write(f"sbplan: rank {rank} ends the job:\n{told}")  # in one write: other ranks may tell theirs
        sys.stdout.flush()
        sys.stderr.flush()
        await_relay()
        abort(exit_code_of(error))

    sys.excepthook = hook
