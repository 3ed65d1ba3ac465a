"""Ranks that were not started alike, under a real mpiexec: refused with what differs, before any of them trains."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executor.supervision.environment import find_mpiexec
from strategy.sbp.tensor import DType
from tests.campaigns.outcome import Outcome
from tests.mpi.jobs import ROOT
from tests.mpi.plans import write_small_plan

RANKS = 2
"""Of the plan; the one that was started otherwise is drawn."""
PLAIN = ("-m", "experiments")
OTHER_VERSION = (
    "-c",
    "import experiments.entry as e, experiments.version as v, sys; v.VERSION = '0.0.9'; sys.exit(e.main())",
)


@dataclass(frozen=True, slots=True)
class Start:
    """How one rank is started: by what Python runs, and with which arguments."""

    program: tuple[str, ...]
    arguments: tuple[str, ...]

    def but(self, *more: str) -> Start:
        """With more arguments, which win over those before."""
        return Start(self.program, (*self.arguments, *more))


def _plan(folder: Path, usual: Start) -> Start:
    other = str(write_small_plan(folder, "mixed"))
    return Start(usual.program, (usual.arguments[0], other, *usual.arguments[2:]))


def _dtype(folder: Path, usual: Start) -> Start:
    other = str(write_small_plan(folder, "tensor", DType.FLOAT64))
    return Start(usual.program, (usual.arguments[0], other, *usual.arguments[2:]))


def _text(folder: Path, usual: Start) -> Start:
    (folder / "other.txt").write_text("Another text. " * 2000)
    return usual.but("--data", str(folder / "other.txt"))


KINDS: Mapping[str, Callable[[Path, Start], Start]] = {
    "plan": _plan,
    "config": _plan,
    "dtype": _dtype,
    "version": lambda folder, usual: Start(OTHER_VERSION, usual.arguments),
    "steps": lambda folder, usual: usual.but("--steps", "5"),
    "checkpoint every": lambda folder, usual: usual.but("--checkpoint-every", "2"),
    "checkpoint": lambda folder, usual: usual.but("--checkpoint", "elsewhere"),
    "text": _text,
}
"""What the message must name -> a start that differs in it."""
QUOTAS = dict.fromkeys(KINDS, 0.05)


def run(cases: int, seed: int) -> Outcome:
    """Start `cases` jobs, every kind of disagreement in turn."""
    outcome = Outcome(QUOTAS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(seed, seed + cases):
            what = list(KINDS)[number % len(KINDS)]
            problems = list(check(folder, what, random.Random(number).randrange(RANKS)))
            outcome.add(f"job {number} ({what})", problems, [what])
    return outcome


def check(folder: Path, what: str, victim: int) -> Iterator[str]:
    """What is wrong with how a job ends of whose ranks one differs."""
    plan = write_small_plan(folder, "tensor")
    usual = Start(PLAIN, ("train", str(plan), "--steps", "3", "--checkpoint", "saved", "--json"))
    starts = [usual] * RANKS
    starts[victim] = KINDS[what](folder, usual)
    done = _job(folder, starts)
    told = [line for line in done.stderr.splitlines() if line.startswith(f"  - {what}: ")]
    if done.returncode != 2:
        yield f"code {done.returncode}: {done.stderr}"
    if len(told) != 1 or "rank 0" not in told[0] or "rank 1" not in told[0]:
        yield f"told {done.stderr}"
    if '"step"' in done.stdout or any((folder / name).exists() for name in ("saved", "elsewhere")):
        yield "they trained before they were refused"


def _job(folder: Path, starts: Sequence[Start]) -> subprocess.CompletedProcess[str]:
    """One mpiexec that starts every rank by its own command line."""
    command = [str(find_mpiexec())]
    for number, start in enumerate(starts):
        command += [":"] * (number > 0)
        command += ["-n", "1", "-env", "PYTHONPATH", str(ROOT), sys.executable, "-P", *start.program, *start.arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
