"""A signal that comes inside a callback is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

IN_A_CALLBACK = """
import os, signal, sys, time, weakref
from contextlib import nullcontext
from strategy.base.interruption import raised_again

def end(number, frame):
    raise SystemExit(128 + number)

class Thing:
    pass

def callback(_):
    os.kill(os.getpid(), {signum})

signal.signal(signal.SIGTERM, end)
with {hook}():
    thing = Thing()
    watched = weakref.ref(thing, callback)
    del thing
    try:
        time.sleep(1)
    except KeyboardInterrupt:
        sys.exit(130)
sys.exit(7)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hook", ["raised_again", "nullcontext"])
def test_a_signal_in_a_callback_ends_the_program(signum: signal.Signals, hook: str) -> None:
    code = IN_A_CALLBACK.format(signum=int(signum), hook=hook)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    if hook == "nullcontext":
        assert (ended.returncode, ended.stderr.split()[:2]) == (7, ["Exception", "ignored"])
    else:
        assert (ended.returncode, ended.stderr) == (128 + signum, "")


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
