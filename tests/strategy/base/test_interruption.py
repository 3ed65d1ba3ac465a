"""A signal that comes inside a callback is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IN_A_CALLBACK = """
import os, signal, sys, threading, time, weakref
from contextlib import nullcontext
from strategy.base.interruption import raised_again

def end(number, frame):
    raise SystemExit(128 + number)

class Thing:
    pass

def callback(_):
    os.kill(os.getpid(), {signum})

start = threading.Thread.start

def start_late(thread):
    start(thread)
    time.sleep({busy_s})

threading.Thread.start = start_late
signal.signal(signal.SIGTERM, end)
with {hook}():
    thing = Thing()
    watched = weakref.ref(thing, callback)
    del thing
    try:
        time.sleep({left_s})
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit(7)
"""


def in_a_callback(signum: signal.Signals, hook: str, *, busy_s: float, left_s: float) -> tuple[int, str]:
    """Exit status and stderr of a program that is busy in the hook, and then has some time left."""
    code = IN_A_CALLBACK.format(signum=int(signum), hook=hook, busy_s=busy_s, left_s=left_s)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("busy_s", [0.0, 0.3])
def test_a_signal_in_a_callback_ends_the_program(signum: signal.Signals, busy_s: float) -> None:
    """However long the hook takes; and at once, though the program waits for something that does not come."""
    assert in_a_callback(signum, "raised_again", busy_s=busy_s, left_s=300) == (128 + signum, "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_callback_is_lost_otherwise(signum: signal.Signals) -> None:
    status, told = in_a_callback(signum, "nullcontext", busy_s=0, left_s=0.1)
    assert (status, told.split()[:2]) == (7, ["Exception", "ignored"])


def test_other_exceptions_are_still_printed() -> None:
    code = """
import weakref
from strategy.base.interruption import raised_again

class Thing:
    pass

with raised_again():
    thing = Thing()
    watched = weakref.ref(thing, lambda _: 1 / 0)
    del thing
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0
    assert "ZeroDivisionError" in ended.stderr
