"""Stopping: work that a signal ends with the best so far, and the exit code that says so."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from experiments.command.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED


@contextmanager
def stopping() -> Iterator[list[int]]:
    """SIGTERM ends the work like Ctrl-C, with the best so far; yields the signals that came.

    Work that has nothing to keep lets the interruption pass: then the command ends as the signal says.
    """
    came: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        came.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    except KeyboardInterrupt:
        if signal.SIGTERM in came:
            raise SystemExit(EXIT_TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def unwinding() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C meanwhile, so that what is to be kept is written on the way out."""

    def terminate(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code(came: Sequence[int]) -> int:
    """Of work that was stopped, by the signals that came."""
    return EXIT_TERMINATED if signal.SIGTERM in came else EXIT_INTERRUPTED
