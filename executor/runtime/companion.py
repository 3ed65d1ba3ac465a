"""Companion: a thread that goes on with messages while the worker is inside an act that computes.

MPI moves a message only while it is called, and a worker calls it between acts. So while an act of some milliseconds
computes, what lies in the sockets waits, and a collective of several messages takes an act for each of them.

    worker      | act ......................... | act ......       holds the lock but while it computes
    companion      nap | look | nap | look | nap                   looks where the worker is away, with the lock

There is one thread at a time in MPI, and in the protocol: an act, its credits and its records are the lock holder's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import numpy as np

_NAP_S = 1e-3
"""Between two looks: the core is the worker's own."""
_Found = TypeVar("_Found")


class Companion:
    """Calls `go_on` beside what the worker computes; in a `with` block, which the worker is in with the lock.

    Args:
        go_on: goes on with what is under way, as far as that is.
    """

    def __init__(self, go_on: Callable[[], object]) -> None:
        self._go_on = go_on
        self._lock = threading.Lock()
        self._is_away = self._is_over = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Companion:
        self._is_over, self._error = False, None
        self._lock.acquire()
        self._thread = threading.Thread(target=self._run, name="messages beside acts", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = True
        self._lock.release()
        if self._thread is not None:
            self._thread.join()

    def beside(self, act: Callable[[], _Found]) -> _Found:
        """Do an act without the lock; what went wrong beside it is raised after it."""
        self._is_away = True
        self._lock.release()
        try:
            return act()
        finally:
            self._is_away = False
            self._lock.acquire()
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # as the worker has it: such errors are a thread's own
            while not self._is_over and self._error is None:
                time.sleep(_NAP_S)
                if self._is_away:
                    with self._lock:
                        self._look()

    def _look(self) -> None:
        if self._is_over or not self._is_away:
            return
        try:
            self._go_on()
        except Exception as error:  # noqa: BLE001 - it is raised where the worker is
            self._error = error
