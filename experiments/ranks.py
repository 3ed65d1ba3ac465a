"""Ranks: what every MPI process of a job does before and after its real work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from executor.runtime.measured import measured_timeline
from executor.runtime.worker import Worker
from strategy.base.errors import PlanError
from strategy.program.program import Program
from strategy.program.timeline import Timeline

if TYPE_CHECKING:
    from mpi4py import MPI


def world() -> MPI.Intracomm:
    """All ranks of the job."""
    from mpi4py import MPI

    return MPI.COMM_WORLD


def agree(comm: MPI.Intracomm, what: str, mine: str) -> None:
    """Refuse a job whose ranks differ.

    Raises:
        PlanError: with the ranks' values.
    """
    values = comm.allgather(mine)
    if len(set(values)) > 1:
        raise PlanError(f"the ranks disagree on the {what}", got=values, expected="one value")


def all_ok(comm: MPI.Intracomm) -> Callable[[bool], bool]:
    """Agreement of all ranks, as checkpoints want it."""
    from mpi4py import MPI

    return lambda ok: bool(comm.allreduce(ok, MPI.LAND))


def gather_timeline(comm: MPI.Intracomm, program: Program, worker: Worker, steps: int) -> Timeline | None:
    """The measured timeline of all ranks, on rank 0."""
    gathered: Sequence[Sequence[Any]] | None = comm.gather(worker.records)
    if gathered is None:
        return None
    records = [record for rank_records in gathered for record in rank_records]
    return measured_timeline(program, records, steps=steps)


def rank_argv(verb: str, arguments: Sequence[str]) -> list[str]:
    """The command line of one rank that runs `verb` of this installation (`-P`: the current folder shadows nothing)."""
    return [sys.executable, "-P", "-m", "experiments", verb, *arguments]
