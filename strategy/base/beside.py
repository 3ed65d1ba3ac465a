"""Beside: several pieces of work at a time, each but the first in a fork of this process.

Nothing is sent but what they find. Who does a piece of work does not change what comes of it.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from strategy.base.errors import SbplanError

_Found = TypeVar("_Found")


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Those that a user ends a command with."""


def spare_processors() -> int:
    """How many processors there are for this process beside the one that it runs on; 0 where it cannot fork."""
    return len(os.sched_getaffinity(0)) - 1 if "fork" in multiprocessing.get_all_start_methods() else 0


def beside(tasks: Sequence[Callable[[], _Found]]) -> list[_Found | SbplanError]:
    """What each piece of work finds, or its error, in order; at the same time, as far as there are processors.

    Whatever else is raised by one of them is raised here; an interruption ends them all.
    """
    started = [_start(task) for task in tasks[1 : 1 + spare_processors()]]
    try:
        first = [_outcome(task) for task in tasks[:1]]
        last = [_outcome(task) for task in tasks[1 + len(started) :]]
        for task, (_, connection) in zip(tasks[1:], started, strict=False):
            first += _received(connection) or [_outcome(task)]
        return first + last
    finally:
        for process, connection in started:
            connection.close()
            process.terminate()
            process.join()


def start_fork(process: BaseProcess) -> None:
    """Start a process that becomes a fork (`be_fork`) first: until then it takes no signal, or it would do as we do."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def be_fork() -> None:
    """Leave interruptions to whoever started this process, and end at its word without one of our own.

    What there is by then is no garbage: to look through it for some would copy all pages that the two share.
    """
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _start(task: Callable[[], _Found]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, ours, task), daemon=True)
    start_fork(process)
    theirs.close()
    return process, ours


def _work(connection: Connection, theirs: Connection, task: Callable[[], object]) -> None:
    """Send what is found; whatever else happens, end without a word: whoever asked does it again."""
    be_fork()
    theirs.close()
    try:
        connection.send(_outcome(task))
    finally:
        os._exit(0)


def _received(connection: Connection) -> list[_Found | SbplanError]:
    """What a process has found; nothing where it has ended without."""
    try:
        return [connection.recv()]
    except (EOFError, OSError):
        return []


def _outcome(task: Callable[[], _Found]) -> _Found | SbplanError:
    try:
        return task()
    except SbplanError as error:
        return error
