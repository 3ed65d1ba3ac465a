"""Interruptions that are not lost where nothing can be raised."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LATER_S = 0.01


@contextmanager
def raised_again() -> Iterator[None]:
    """What a signal raises inside a callback or a finaliser is raised once more, a moment later.

    The interpreter prints an exception that comes there, and goes on: a Ctrl-C while a module is loaded may be lost.
    """
    before = sys.unraisablehook
    sys.unraisablehook = _again_or(before)
    try:
        yield
    finally:
        sys.unraisablehook = before


def _again_or(
    otherwise: Callable[[sys.UnraisableHookArgs], object],
) -> Callable[[sys.UnraisableHookArgs], object]:
    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        signum = _signal_of(unraisable.exc_value)
        if signum is None:
            otherwise(unraisable)
            return
        again = threading.Timer(LATER_S, signal.raise_signal, (signum,))
        again.daemon = True
        again.start()

    return hook


def _signal_of(error: BaseException | None) -> signal.Signals | None:
    """The signal that unwinds as `error`: KeyboardInterrupt, or SystemExit with 128 + n."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return signal.Signals(error.code - 128)
    return None
