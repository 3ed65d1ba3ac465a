"""Faults in mid-training: kill a process of a job, check what is said of it, and resume, onto another plan too."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from executor.checkpoint import latest, load, open_checkpoint
from executor.checkpoint.manifest import LogicalTensor
from executor.data.text import standard_library
from executor.supervision.heartbeat import Beat
from executor.train import program_of
from strategy.program.program import ActKind
from tests.mpi.jobs import Ended, Job, run_well
from tests.mpi.plans import LAYOUTS, small_plan, write_small_plan
from tests.support.small_plans import train

ENDLESS = 5000
EVERY = 3
AFTER = 4
"""Steps that a job trains if nobody ends it, that lie between two checkpoints, and that are compared after resuming."""
LIMIT_S = 600.0
"""After which a job hangs; a busy machine takes minutes."""
COLLECTIVES = {kind for kind in ActKind if kind.is_communication and kind is not ActKind.TRANSFER}
WHOLE = 15
"""Steps of a job without a fault, whose losses are compared with those of many: most faults come sooner."""


class Moment(StrEnum):
    """When a fault comes: after a step's report at once or a little later, while a save is under way, or while ranks
    exchange."""

    REPORT = "report"
    ANY = "any time"
    SAVE = "in a save"
    COLLECTIVE = "in a collective"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is killed: the `rank` itself or its `guard`, in a job started by mpiexec or by --launch.

    A rank that dies inside of a collective kills itself there (`tests.mpi.broken`), so that mpiexec must start it.
    `after_s` is how long after the moment has come.
    """

    layout: str
    what: str
    victim: int
    launched: bool
    at_step: int = 7
    moment: Moment = Moment.REPORT
    after_s: float = 0.0

    def __str__(self) -> str:
        how = "launched" if self.launched else "mpiexec"
        when = "" if self.moment is Moment.REPORT else f"-{self.moment.replace(' ', '-')}"
        return f"{self.layout}-{self.what}{self.victim}-{how}-step{self.at_step}{when}"


def check_fault(folder: Path, fault: Fault, met: list[str] | None = None, *, elsewhere: bool = True) -> Iterator[str]:
    """Everything that was not as it must be, from the kill to the end of the resumed training.

    `met` is told in which moments the kill was indeed; `elsewhere` another plan goes on from the checkpoint, too.
    """
    plan = write_small_plan(folder, fault.layout)
    ranks = small_plan(fault.layout).ranks
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", EVERY)
    how = ["--launch"] * fault.launched
    ended, run, beat = _killed(folder, fault, (*start, *how, "--steps", ENDLESS))
    yield from _ending(fault, ended)
    yield from _telling(fault, ended, run, beat.process.pid)
    if met is not None:
        met += _moments(folder, run, fault)
    saved = max((int(p.name.removeprefix("step-")) for p in (folder / "saved").glob("step-????????")), default=0)
    # The last but one that is due is over: the last waits for it.
    if saved < EVERY * ((fault.at_step - 1) // EVERY - 1):
        yield f"the newest checkpoint is of step {saved}"
    if not saved:
        return
    resumed = run_well(
        folder,
        *(*start, "--resume", *how, "--steps", saved + AFTER),
        ranks=None if fault.launched else ranks,
        timeout_s=LIMIT_S,
    )
    whole = never_killed(fault.layout, saved + AFTER)
    before, after = losses_of(ended), losses_of(resumed)
    if sorted(after) != list(range(saved + 1, saved + AFTER + 1)):
        yield f"resumed from {saved}, it did steps {sorted(after)}"
    for step, loss in (*before.items(), *after.items()):
        if step in whole and loss != whole[step]:
            yield f"step {step}: loss {loss!r}, never killed {whole[step]!r}"
    for step in (saved, saved + AFTER):
        if state_of(folder / "saved", step) != never_killed_states(fault.layout, saved + AFTER)[step]:
            yield f"step {step}: parameters or moments are not those of a training that was never killed"
    if elsewhere:
        yield from _onto_another_plan(folder, fault, saved, whole)


def _killed(folder: Path, fault: Fault, verb: Sequence[object]) -> tuple[Ended, Path, Beat]:
    """A job from its start to its end: how it ended, its run folder, and its victim."""
    ranks = None if fault.launched else small_plan(fault.layout).ranks
    if fault.moment is Moment.COLLECTIVE:
        job = Job(folder, "die", fault.victim, fault.at_step, *verb, ranks=ranks, module="tests.mpi.broken")
        job.wait_for_step(1)
        run, beat = job.run_folder(), job.beats()[fault.victim]
        # Its last step is the one before, or one later, where there are few collectives in a step.
        job.wait_for_step(fault.at_step - 1)
        began_s = time.monotonic()
        return replace(job.wait(timeout_s=LIMIT_S), seconds=time.monotonic() - began_s), run, beat
    job = Job(folder, *verb, ranks=ranks)
    job.wait_for_step(fault.at_step)
    run, beat = job.run_folder(), job.beats()[fault.victim]
    while fault.moment is Moment.SAVE and not any((folder / "saved").glob("*.tmp/rank-*")):
        time.sleep(0.0002)
    time.sleep(fault.after_s)
    job.signal(signal.SIGKILL, (beat.guard if fault.what == "guard" else beat.process).pid)
    return job.wait(timeout_s=LIMIT_S), run, beat


def _moments(folder: Path, run: Path, fault: Fault) -> Iterator[str]:
    """What a job that is over was in when it was killed: a save if a draft is left, a collective if it died there."""
    if any((folder / "saved").glob("*.tmp")):
        yield "inside a save"
    kind = find_failure(run)["actor"].rpartition("(")[2].rstrip(")")
    if fault.moment is Moment.COLLECTIVE and kind in COLLECTIVES:
        yield "inside a collective"


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
    ended = run_well(folder, "train", write_small_plan(folder, layout), *goal, ranks=plan.ranks, timeout_s=LIMIT_S)
    after = losses_of(ended)
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


def state_of(saved: Path, step: int) -> Mapping[str, LogicalTensor]:
    """What a checkpoint says of its tensors: where the plan is one, equal hashes are equal bits."""
    return open_checkpoint(saved / f"step-{step:08}").manifest.tensors


def never_killed(layout: str, steps: int) -> Mapping[int, float]:
    """Step -> loss of so many steps at least, without a fault."""
    return _never_killed(layout, -(-steps // WHOLE) * WHOLE)[0]


def never_killed_states(layout: str, steps: int) -> Mapping[int, Mapping[str, LogicalTensor]]:
    """Step -> parameters and moments after it, of so many steps at least, without a fault."""
    return _never_killed(layout, -(-steps // WHOLE) * WHOLE)[1]


@cache
def _never_killed(layout: str, steps: int) -> tuple[Mapping[int, float], Mapping[int, Mapping[str, LogicalTensor]]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        goal = ("--steps", steps, "--checkpoint", "saved", "--checkpoint-every", 1, "--json")
        plan, ranks = write_small_plan(folder, layout), small_plan(layout).ranks
        ended = run_well(folder, "train", plan, *goal, ranks=ranks, timeout_s=LIMIT_S)
        return losses_of(ended), {step: state_of(folder / "saved", step) for step in range(1, steps + 1)}
