"""Interruptions: not lost where nothing can be raised, and put off where something is to be brought to its end."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

LATER_S = 0.01
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class Interruption:
    """Whether somebody wants the end: the number of the signal that came, or 0."""

    signum: int = 0


@contextmanager
def put_off() -> Iterator[Interruption]:
    """The first Ctrl-C or SIGTERM is only noted meanwhile; the second one does what the first would have done.

    So does the first, at the end, if nothing was raised because of it. Only the main thread is ever interrupted.
    """
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return

    def note(signum: int, frame: FrameType | None) -> None:
        found.signum = signum
        restore()

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    before = {signum: signal.signal(signum, note) for signum in INTERRUPTS}
    try:
        yield found
    finally:
        restore()
    if found.signum:
        signal.raise_signal(found.signum)


@contextmanager
def taken_note_of() -> Iterator[Interruption]:
    """Put off likewise, and not raised in the end either: whoever asks sees that one came.

    The second one leaves what is done here where it is, and is not raised either.
    """
    found = Interruption()
    try:
        with put_off() as found:
            yield found
    except KeyboardInterrupt:
        found.signum = found.signum or signal.SIGINT


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
        threading.Thread(target=_raise_later, args=(signum, threading.get_ident()), daemon=True).start()

    return hook


def _raise_later(signum: signal.Signals, thread: int) -> None:
    """Raise a signal once a thread has left the hook: inside, it would be lost again."""
    time.sleep(LATER_S)
    while any(frame.f_code.co_filename == __file__ for frame in _stack(sys._current_frames().get(thread))):
        time.sleep(LATER_S)
    signal.pthread_kill(thread, signum)  # ends what the thread waits for, too


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _signal_of(error: BaseException | None) -> signal.Signals | None:
    """The signal that unwinds as `error`: KeyboardInterrupt, or SystemExit with 128 + n."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int) and error.code > 128:
        return signal.Signals(error.code - 128)
    return None
