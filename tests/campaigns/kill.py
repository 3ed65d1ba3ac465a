"""Kill a rank or its guard at a random moment of a real training job: it ends, says who, and resumes bit for bit.

Losses, parameters and moments are those of a job that was never killed. A third of the kills come while a save is
under way, beside the training, and a third inside of a collective.
"""

from __future__ import annotations

import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.campaigns.outcome import Outcome
from tests.mpi.faults import Fault, Moment, check_fault
from tests.mpi.plans import LAYOUTS, small_plan

QUOTAS = {
    "rank": 0.4,
    "guard": 0.1,
    "launched": 0.15,
    "mpiexec": 0.25,
    "rank 0": 0.1,
    "another rank": 0.3,
    "stages": 0.05,
    "grid": 0.05,
    "mixed": 0.05,
    "shared": 0.05,
    "tensor": 0.05,
    "inside a save": 0.2,
    "inside a collective": 0.2,
}
_MOMENTS = (Moment.SAVE, Moment.COLLECTIVE, Moment.ANY)
_LATER_S = {Moment.SAVE: 0.02, Moment.ANY: 0.2}
"""A step of a small plan takes some milliseconds, and a save some tens of them."""


def run(cases: int, seed: int) -> Outcome:
    """Play `cases` faults."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        fault = random_fault(number)
        met: list[str] = []
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(f"fault {number} ({fault})", check_or_say(Path(folder), fault, met), [])
        outcome.coverage.update({*exercised(fault), *met})
    return outcome


def check_or_say(folder: Path, fault: Fault, met: list[str]) -> Iterator[str]:
    """What was wrong; a job that does not even start or end is wrong, too."""
    try:
        yield from check_fault(folder, fault, met)
    except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
        yield f"{type(error).__name__}: {error}"


def random_fault(seed: int) -> Fault:
    """The moment is the seed's; every third in the guard and every other with --launch, where either can be."""
    rng = random.Random(seed)
    layout = rng.choice(sorted(name for name in LAYOUTS if name != "alone"))
    moment = _MOMENTS[seed % len(_MOMENTS)]
    inside = moment is Moment.COLLECTIVE
    return Fault(
        layout,
        "rank" if inside else rng.choice(("rank", "rank", "guard")),
        victim=rng.randrange(small_plan(layout).ranks),
        launched=not inside and rng.random() < 0.5,
        at_step=rng.randint(7, 20),
        moment=moment,
        after_s=rng.uniform(0.0, _LATER_S.get(moment, 0.0)),
    )


def exercised(fault: Fault) -> Iterator[str]:
    """What a fault is good for."""
    yield fault.layout
    yield fault.what
    yield "launched" if fault.launched else "mpiexec"
    yield "rank 0" if fault.victim == 0 else "another rank"
