"""Kill a rank or its guard at a random step of a real training job: it ends, says who, and resumes bit for bit."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.outcome import Outcome
from tests.mpi.faults import Fault, check_fault
from tests.mpi.plans import LAYOUTS, small_plan

QUOTAS = {
    "rank": 0.4,
    "guard": 0.1,
    "launched": 0.25,
    "mpiexec": 0.25,
    "rank 0": 0.1,
    "another rank": 0.3,
    "stages": 0.05,
    "grid": 0.05,
    "mixed": 0.05,
    "shared": 0.05,
    "tensor": 0.05,
}


def run(cases: int, seed: int) -> Outcome:
    """Play `cases` faults."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        fault = random_fault(number)
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(f"fault {number} ({fault})", check_or_say(Path(folder), fault), exercised(fault))
    return outcome


def check_or_say(folder: Path, fault: Fault) -> Iterator[str]:
    """What was wrong; a job that does not even start or end is wrong, too."""
    try:
        yield from check_fault(folder, fault)
    except (AssertionError, OSError, ValueError) as error:
        yield f"{type(error).__name__}: {error}"


def random_fault(seed: int) -> Fault:
    """Every third one in the guard, every other one with --launch."""
    rng = random.Random(seed)
    layout = rng.choice(sorted(name for name in LAYOUTS if name != "alone"))
    return Fault(
        layout,
        rng.choice(("rank", "rank", "guard")),
        victim=rng.randrange(small_plan(layout).ranks),
        launched=rng.random() < 0.5,
        at_step=rng.randint(7, 20),
    )


def exercised(fault: Fault) -> Iterator[str]:
    """What a fault is good for."""
    yield fault.layout
    yield fault.what
    yield "launched" if fault.launched else "mpiexec"
    yield "rank 0" if fault.victim == 0 else "another rank"
