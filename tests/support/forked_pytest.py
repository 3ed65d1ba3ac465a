"""pytest in forks of one process that has imported what no mutant changes: most of what a few tests take is imports.

    python forked_pytest.py < requests, a JSON list per line: arguments of pytest, CPU seconds, file for what it says

It answers each with a line: the exit status, or "time" if it did not end in so many seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path

import hypothesis.strategies  # noqa: F401
import msgspec  # noqa: F401
import numba  # noqa: F401
import numpy  # noqa: F401
import pytest
import scipy.optimize  # noqa: F401

WAITS = 20
"""Seconds on the wall for each of the processor: tests share cores, and may wait for ever."""


def _tests(arguments: list[str], cpu_s: int, said: str) -> None:
    """Run tests in this process, and end it."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    with Path(said).open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    status = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(status)


def main() -> None:
    """Answer requests until there are no more."""
    sys.path.insert(0, str(Path.cwd()))
    for line in sys.stdin:
        arguments, cpu_s, said = json.loads(line)
        child = os.fork()
        if not child:
            _tests(arguments, cpu_s, said)
        over = threading.Event()

        def end(child: int = child, over: threading.Event = over) -> None:
            over.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)

        timer = threading.Timer(WAITS * cpu_s, end)
        timer.start()
        _, status = os.waitpid(child, 0)
        timer.cancel()
        code = os.waitstatus_to_exitcode(status)
        print("time" if over.is_set() or code == -signal.SIGXCPU else code, flush=True)


if __name__ == "__main__":
    main()
