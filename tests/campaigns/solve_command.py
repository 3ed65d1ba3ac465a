"""`sbplan solve` as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True, slots=True)
class Solved:
    """What one run said."""

    code: int
    status: str
    cost: int | None
    lower_bound: int
    choice: str
    """The last line, as it was printed."""
    first_feasible_s: float | None = field(compare=False)
    seconds: float = field(compare=False)
    peak_rss_bytes: int = field(compare=False)


def run_solve(path: Path, *options: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> Solved:
    """Solve a file.

    Raises:
        RuntimeError: the command ended otherwise than a solver may.
    """
    done = subprocess.run(
        [sys.executable, "-m", "experiments.entry", "solve", str(path), "--json", *map(str, options)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 3, 4):
        raise RuntimeError(f"exit {done.returncode}: {done.stderr}")
    document, choice = done.stdout.splitlines()[-2:]
    said = json.loads(document)
    times = said["first_feasible_s"], said["solve_time_s"]
    return Solved(
        done.returncode, said["status"], said["cost"], said["lower_bound"], choice, *times, said["peak_rss_bytes"]
    )
