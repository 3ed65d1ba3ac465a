"""Faults in mid-training: kill a process of a job, check what is said of it, and resume, onto another plan too."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from executor.checkpoint import latest, load
from executor.data.text import standard_library
from executor.train import program_of
from tests.mpi.jobs import Ended, Job, run_well
from tests.mpi.plans import LAYOUTS, small_plan, write_small_plan
from tests.support.small_plans import train

ENDLESS = 5000
EVERY = 3
AFTER = 4
"""Steps that a job trains if nobody ends it, that lie between two checkpoints, and that are compared after resuming."""
WHOLE = 15
"""Steps of a job without a fault, whose losses are compared with those of many: most faults come sooner."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is killed: the `rank` itself or its `guard`, in a job started by mpiexec or by --launch."""

    layout: str
    what: str
    victim: int
    launched: bool
    at_step: int = 7

    def __str__(self) -> str:
        how = "launched" if self.launched else "mpiexec"
        return f"{self.layout}-{self.what}{self.victim}-{how}-step{self.at_step}"


def check_fault(folder: Path, fault: Fault) -> Iterator[str]:
    """Everything that was not as it must be, from the kill to the end of the resumed training."""
    plan = write_small_plan(folder, fault.layout)
    ranks = small_plan(fault.layout).ranks
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", EVERY)
    started = None if fault.launched else ranks
    how = ["--launch"] * fault.launched
    job = Job(folder, *start, *how, "--steps", ENDLESS, ranks=started)
    job.wait_for_step(fault.at_step)
    run, beat = job.run_folder(), job.beats()[fault.victim]
    job.signal(signal.SIGKILL, (beat.guard if fault.what == "guard" else beat.process).pid)
    ended = job.wait()
    yield from _ending(fault, ended)
    yield from _telling(fault, ended, run, beat.process.pid)
    saved = max((int(p.name.removeprefix("step-")) for p in (folder / "saved").glob("step-????????")), default=0)
    if saved < EVERY * (
        (fault.at_step - 1) // EVERY - 1
    ):  # the last but one that is due is over: the last waits for it
        yield f"the newest checkpoint is of step {saved}"
    resumed = run_well(
        folder, *start, "--resume", *how, "--steps", saved + AFTER, ranks=None if fault.launched else ranks
    )
    whole = never_killed(fault.layout, saved + AFTER)
    before, after = losses_of(ended), losses_of(resumed)
    if sorted(after) != list(range(saved + 1, saved + AFTER + 1)):
        yield f"resumed from {saved}, it did steps {sorted(after)}"
    for step, loss in (*before.items(), *after.items()):
        if step in whole and loss != whole[step]:
            yield f"step {step}: loss {loss!r}, never killed {whole[step]!r}"
    yield from _onto_another_plan(folder, fault, saved, whole)


def _onto_another_plan(folder: Path, fault: Fault, saved: int, whole: Mapping[int, float]) -> Iterator[str]:
    """The checkpoint under another layout: the same bits when put together, and the same losses as far as sums go."""
    others = [name for name in LAYOUTS if name not in (fault.layout, "alone")]
    layout = others[(fault.victim + fault.at_step) % len(others)]
    plan = small_plan(layout)
    shutil.copytree(folder / "saved" / f"step-{saved:08}", folder / layout / f"step-{saved:08}")
    checkpoint = latest(folder / layout)
    assert checkpoint is not None
    trained = train(plan, standard_library(), steps=0, checkpoint=checkpoint)
    for trainer in trained.trainers:
        for piece in trainer.owned_pieces():
            if not np.array_equal(piece.array, load(checkpoint, piece.name, piece.box)):
                yield f"{piece.name}{piece.box} under {layout} is not what the checkpoint holds"
    goal = ("--resume", "--checkpoint", layout, "--steps", saved + AFTER, "--json")
    after = losses_of(run_well(folder, "train", write_small_plan(folder, layout), *goal, ranks=plan.ranks))
    for step, loss in after.items():
        if not abs(loss - whole[step]) <= 1e-4 * abs(whole[step]):
            yield f"step {step} under {layout}: loss {loss!r}, never killed {whole[step]!r}"


def _ending(fault: Fault, ended: Ended) -> Iterator[str]:
    if ended.seconds > 10:
        yield f"took {ended.seconds:.1f} s to end"
    # mpiexec itself prints a banner on stdout, and its own code, when the very process that it started is killed.
    if fault.launched or fault.what == "rank":
        if ended.code != 6:
            yield f"code {ended.code}"
        for line in ended.stdout.splitlines():
            if not line.startswith("{"):
                yield f"on stdout: {line}"


def _telling(fault: Fault, ended: Ended, run: Path, pid: int) -> Iterator[str]:
    failure = find_failure(run)
    if (failure["rank"], failure["pid"], failure["exit_code"]) != (fault.victim, pid, 6):
        yield f"blamed {failure['rank']} ({failure['pid']}) with code {failure['exit_code']}: {failure['reason']}"
    actors = {f"{a.name} ({a.kind})" for a in program_of(small_plan(fault.layout)).actors if a.rank == fault.victim}
    if failure["actor"] not in actors:
        yield f"{failure['actor']!r} is no actor of rank {fault.victim}"
    done = max(losses_of(ended))
    if not done - 2 <= failure["step"] <= done + 2:
        yield f"blamed step {failure['step']}, but {done} were done"
    told = [line for line in ended.messages if line.startswith(f"sbplan: rank {fault.victim} (pid {pid} on ")]
    if len(told) != 1 or f"failed in {failure['actor']}, step {failure['step']}: " not in told[0]:
        yield f"told {told}"


def find_failure(run: Path) -> dict[str, Any]:
    """The recorded cause."""
    found: dict[str, Any] = json.loads((run / "failure.json").read_text())
    return found


def losses_of(ended: Ended) -> dict[int, float]:
    """Step -> loss, from what a job said on stdout."""
    documents = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return {document["step"]: document["loss"] for document in documents if "step" in document}


def never_killed(layout: str, steps: int) -> Mapping[int, float]:
    """Step -> loss of so many steps at least, without a fault."""
    return _never_killed(layout, -(-steps // WHOLE) * WHOLE)


@cache
def _never_killed(layout: str, steps: int) -> Mapping[int, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = write_small_plan(folder, layout)
        return losses_of(run_well(folder, "train", plan, "--steps", steps, "--json", ranks=small_plan(layout).ranks))
