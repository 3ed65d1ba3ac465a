"""Ranks: what every MPI process of a job does before and after its real work."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from executor.runtime.measured import measured_timeline
from executor.runtime.transport.mpi import load_mpi
from executor.runtime.worker import Record, Worker
from strategy.base.errors import PlanError
from strategy.program.program import Program
from strategy.program.timeline import Timeline

if TYPE_CHECKING:
    from mpi4py import MPI


def world() -> MPI.Intracomm:
    """All ranks of the job.

    Raises:
        EnvironmentLacks: no MPI library can be loaded.
    """
    comm: MPI.Intracomm = load_mpi().COMM_WORLD
    return comm


def broadcast(comm: MPI.Intracomm, document: Any) -> Any:
    """What rank 0 has, on all ranks: JSON values. As JSON, since a pickle could run code where it is read."""
    raw = np.frombuffer(json.dumps(document).encode(), np.uint8)
    count = np.array([raw.size], np.int64)
    comm.Bcast(count)
    text = raw.copy() if comm.rank == 0 else np.empty(int(count[0]), np.uint8)
    comm.Bcast(text)
    return json.loads(text.tobytes())


def gather(comm: MPI.Intracomm, document: Any) -> list[Any] | None:
    """What every rank has, by rank, on rank 0: JSON values."""
    raw = np.frombuffer(json.dumps(document).encode(), np.uint8)
    counts = np.empty(comm.size, np.int64) if comm.rank == 0 else None
    comm.Gather(np.array([raw.size], np.int64), counts)
    if counts is None:
        comm.Gatherv(raw, None)
        return None
    text = np.empty(int(counts.sum()), np.uint8)
    comm.Gatherv(raw, [text, counts])
    return [json.loads(part.tobytes()) for part in np.split(text, np.cumsum(counts)[:-1])]


def mean(comm: MPI.Intracomm, figure: float) -> float:
    """The mean of all ranks' figures, on all ranks."""
    total = np.empty(1)
    comm.Allreduce(np.array([figure]), total)
    return float(total[0]) / comm.size


def agree(comm: MPI.Intracomm, what: str, mine: str) -> None:
    """Refuse a job whose ranks differ.

    Raises:
        PlanError: with the ranks' values.
    """
    values = broadcast(comm, gather(comm, mine))
    if len(set(values)) > 1:
        raise PlanError(f"the ranks disagree on the {what}", got=values, expected="one value")


def all_ok(comm: MPI.Intracomm) -> Callable[[bool], bool]:
    """Agreement of all ranks, as checkpoints want it."""
    return lambda ok: all(broadcast(comm, gather(comm, ok)))


def gather_timeline(comm: MPI.Intracomm, program: Program, worker: Worker, steps: int) -> Timeline | None:
    """The measured timeline of all ranks, on rank 0."""
    gathered = gather(comm, worker.records)
    if gathered is None:
        return None
    records: list[Record] = [
        (actor, stream, number, tuple(reads), tuple(writes), *times)
        for rank_records in gathered
        for actor, stream, number, reads, writes, *times in rank_records
    ]
    return measured_timeline(program, records, steps=steps)


def rank_argv(verb: str, arguments: Sequence[str]) -> list[str]:
    """The command line of one rank that runs `verb` of this installation (`-P`: the current folder shadows nothing)."""
    return [sys.executable, "-P", "-m", "experiments", verb, *arguments]
