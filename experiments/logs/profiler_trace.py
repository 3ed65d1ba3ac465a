"""Steps in a trace of the PyTorch profiler: Chrome trace JSON, plain or gzipped, as `export_chrome_trace` writes it.

`profiler.step()`, called at the end of every training step, marks each as an event `ProfilerStep#N` of the host,
with `dur` in microseconds from one call to the next. What the profiler itself takes is in it; kernels are not read, for
a trace is of one rank, whose collectives hold what it waits for others.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from strategy.base.errors import InputError
from strategy.base.files import read_json

_STEP = re.compile(r"ProfilerStep#(\d+)")
_HOST = "user_annotation"
"""Category of what the host's code marks; `gpu_user_annotation` is the same mark over the kernels that it issued."""


def is_trace(path: Path) -> bool:
    """Whether a file's name is that of a trace."""
    return path.suffix == ".json" or path.suffixes[-2:] == [".json", ".gz"]


def read_steps_s(path: Path) -> dict[int, float]:
    """Number of a step -> its seconds.

    Raises:
        InputError: no such file, no trace, or no step is marked in it.
    """
    document = read_json(path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError("no trace of the PyTorch profiler", where=str(path), expected="JSON with traceEvents")
    found: dict[int, float] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("cat") != _HOST:
            continue
        mark, microseconds = _STEP.fullmatch(str(event.get("name"))), event.get("dur")
        if mark and isinstance(microseconds, int | float) and 0 < microseconds < math.inf:
            found[int(mark[1])] = microseconds / 1e6
    if not found:
        hint = "record with a schedule, and call profiler.step() after every step"
        raise InputError("no step is marked", where=str(path), expected="events 'ProfilerStep#N'", hint=hint)
    return found
