"""Step time: what steps of a run take that nobody records act by act; a file of its folder.

A recorded step takes a little longer: events between acts, and what is noted of each.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from strategy.base.errors import InputError
from strategy.base.files import read_json, write_atomic

_NAME, _KEY = "step_time.json", "step_time_s"


def write_step_time(folder: Path, step_time_s: float) -> None:
    """Keep it."""
    write_atomic(folder / _NAME, json.dumps({_KEY: step_time_s}) + "\n")


def read_step_time(folder: Path) -> float | None:
    """What was kept, in seconds; None where all steps were recorded.

    Raises:
        InputError: the file is damaged.
    """
    path = folder / _NAME
    if not path.exists():
        return None
    document = read_json(path)
    found = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(found, float | int) or not (0 < found < math.inf):
        raise InputError("not the time of a step", where=str(path), got=found, expected=f"{_KEY}, in seconds")
    return float(found)
