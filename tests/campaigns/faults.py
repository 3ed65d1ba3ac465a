"""A rank of a real training job raises, is killed, is stopped or loses messages: the job ends in time and says who.

    raise, kill     all ranks end in 1 s
    stop            in the limit for stopped ranks and 5 s
    lose            in the limit for stalled ranks and 5 s

Every case is one job of `sbplan train`, under mpiexec or by --launch, of two to four ranks, broken at a random step; no
process may be left. A machine that is busy with other things takes longer.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from executor.supervision.watchdog import Limits
from tests.campaigns.outcome import Outcome, survived
from tests.mpi.broken import STALL_S
from tests.mpi.faults import find_failure
from tests.mpi.jobs import Ended, Job
from tests.mpi.plans import LAYOUTS, small_plan, write_small_plan

FIGURES_S = {"raise": 1.0, "kill": 1.0, "stop": Limits().stop_s + 5, "lose": STALL_S + 5}
QUOTAS = {**dict.fromkeys(FIGURES_S, 0.2), "launched": 0.15, "mpiexec": 0.2}
WORDS = {
    "raise": "is unwell",
    "kill": "killed by SIGKILL",
    "stop": "stopped by a signal",
    "lose": "no progress for more than",
}
"""What the verdict says."""


@dataclass(frozen=True, slots=True)
class Injected:
    """What goes wrong in a job, where and when."""

    what: str
    layout: str
    victim: int
    launched: bool
    step: int


def run(cases: int, seed: int) -> Outcome:
    """Play `cases` faults, every kind in turn."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        fault = random_fault(number)
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(f"{number} {fault}", survived(check(Path(folder), fault)), exercised(fault))
    return outcome


def random_fault(seed: int) -> Injected:
    """One of a kind that the seed says."""
    rng = random.Random(seed)
    layout = rng.choice(sorted(name for name in LAYOUTS if name not in ("alone", "grid")))
    what = list(FIGURES_S)[seed % len(FIGURES_S)]
    launched = what in ("kill", "stop") and rng.random() < 0.5
    return Injected(what, layout, rng.randrange(small_plan(layout).ranks), launched, rng.randint(3, 8))


def exercised(fault: Injected) -> Iterator[str]:
    """What a fault is good for."""
    yield fault.what
    yield fault.layout
    yield "launched" if fault.launched else "mpiexec"


def check(folder: Path, fault: Injected) -> Iterator[str]:
    """Everything that was not as it must be."""
    ended, run_folder, seconds = play(folder, fault)
    failure = find_failure(run_folder)
    if seconds > FIGURES_S[fault.what]:
        yield f"took {seconds:.2f} s"
    code = 70 if fault.what == "raise" else 6
    if (ended.code, failure["exit_code"]) not in ((code, code), (6, 6)):
        yield f"code {ended.code}"
    told = [line for line in ended.messages if WORDS[fault.what] in line and line.startswith("sbplan: rank ")]
    if len(told) != 1:
        yield f"told {ended.messages}"
    # Whose message is lost, nobody can tell: either side of it waits.
    if fault.what != "lose" and failure["rank"] != fault.victim:
        yield f"blamed {failure['rank']}: {failure['reason']}"
    if not failure["actor"] or failure["step"] < 1:
        yield f"placed in {failure['actor']!r}, step {failure['step']}"


def play(folder: Path, fault: Injected) -> tuple[Ended, Path, float]:
    """A job from its start to its end; its run folder, and the seconds from the fault on."""
    plan, ranks = write_small_plan(folder, fault.layout), small_plan(fault.layout).ranks
    start = ("train", plan, "--json", "--steps", 5000)
    if fault.what in ("raise", "lose"):
        # In the ranks, whoever starts them: --launch would start others.
        job = Job(folder, fault.what, fault.victim, fault.step, *start, ranks=ranks, module="tests.mpi.broken")
        job.wait_for_step(fault.step - 1)
        run_folder = job.run_folder()
        began_s = time.monotonic()
        ended = job.wait()
        return ended, run_folder, time.monotonic() - began_s
    how = ["--launch"] * fault.launched
    job = Job(folder, *start, *how, ranks=None if fault.launched else ranks)
    job.wait_for_step(fault.step)
    run_folder, process = job.run_folder(), job.beats()[fault.victim].process
    job.signal(signal.SIGKILL if fault.what == "kill" else signal.SIGSTOP, process.pid)
    ended = job.wait()
    return ended, run_folder, ended.seconds
