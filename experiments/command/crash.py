"""`crash.json`: what a report of a bug needs, and nothing of the user's environment."""

from __future__ import annotations

import json
import platform
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from strategy.base.errors import RunError
from strategy.base.files import write_atomic

LIBRARIES = (
    "sbplan",
    "numpy",
    "scipy",
    "ortools",
    "numba",
    "mpi4py",
    "mpich",
    "msgspec",
    "safetensors",
    "cupy-cuda13x",
)


def write_crash(error: Exception, argv: Sequence[str]) -> Path:
    """Write `crash.json` in the current folder and return its path.

    Raises:
        InputError, RunError: the file cannot be written there.
    """
    try:
        path = Path.cwd() / "crash.json"
    except OSError as gone:
        raise RunError(f"no working folder: {gone.strerror}") from gone
    document = {
        "argv": list(argv),
        "traceback": traceback.format_exception(error),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in LIBRARIES},
    }
    write_atomic(path, json.dumps(document, indent=2) + "\n")
    return path


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
