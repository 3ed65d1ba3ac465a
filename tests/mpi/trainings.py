"""Several trainings by the ranks of one job, one after the other: what starting ranks takes is paid once.

`python -m tests.mpi.trainings STEPS PLAN...`, under mpiexec or alone, is `sbplan train PLAN --steps STEPS --json` of
each plan.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strategy.plan.plan import Plan, write_plan
from tests.mpi.jobs import Job


def trained_by(folder: Path, plans: Sequence[Plan], steps: int) -> list[list[dict[str, Any]]]:
    """What each training says, its steps and then its summary; all plans are of as many ranks."""
    paths = [folder / f"{plan.plan_hash}.json" for plan in plans]
    for path, plan in zip(paths, plans, strict=True):
        write_plan(plan, path)
    (ranks,) = {plan.ranks for plan in plans}
    job = Job(folder, steps, *paths, ranks=ranks if ranks > 1 else None, module="tests.mpi.trainings")
    ended = job.wait(timeout_s=240)
    assert ended.code == 0, f"code {ended.code}\n{ended.stdout}\n{ended.stderr}"
    said, each = ended.documents, steps + 1
    assert len(said) == len(plans) * each
    found = [said[first : first + each] for first in range(0, len(said), each)]
    assert [documents[-1]["plan_hash"] for documents in found] == [plan.plan_hash for plan in plans]
    return found


def losses_of(documents: Sequence[dict[str, Any]]) -> list[float]:
    """The loss of every step of a training."""
    return [document["loss"] for document in documents[:-1]]


def train_all(steps: str, plans: Sequence[str]) -> int:
    """What one rank does."""
    from experiments.cli import parse
    from experiments.jobs.training import train

    for plan in plans:
        _, args = parse("train", [plan, "--steps", steps, "--json"])
        if code := train(args):
            return code
    return 0


if __name__ == "__main__":
    from executor.supervision.environment import job_name
    from executor.supervision.rank import run_rank

    run_rank(lambda: train_all(sys.argv[1], sys.argv[2:]), folder=Path("runs") / f"train-{job_name()}")
