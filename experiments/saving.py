"""Saving: when a training writes its state, where, and what happens when it cannot.

One training at a time holds a folder of checkpoints. A save that fails ends nothing: the state stays in memory, and the
next save that is due is the next try. Only what cannot be saved at the end of the training fails it, after some tries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from executor.checkpoint import UnsavedError, latest, make_durable_folder, save
from executor.supervision.heartbeat import Heartbeat
from executor.train import Trainer, checkpoint_meta
from experiments.console import say
from experiments.ranks import all_ok, barrier, gather
from strategy.base.errors import InputError, RunError
from strategy.base.files import LOCK_NAME, held

if TYPE_CHECKING:
    from mpi4py import MPI

LAST_TRIES_S = (1.0, 4.0, 16.0)
"""How long the last save waits before it is tried again."""


@dataclass(frozen=True, slots=True)
class Saves:
    """Where a training saves: every so many steps, keeping the newest few."""

    folder: Path
    every: int
    keep: int | None


def refuse_if_held(comm: MPI.Intracomm, folder: Path | None) -> None:
    """Say that another training holds the folder, before ranks look at what it holds and see different checkpoints.

    Raises:
        InputError: it does.
    """
    if comm.rank == 0 and folder is not None and (folder / LOCK_NAME).exists():
        with held(folder):
            pass
    barrier(comm)


@contextmanager
def locked(comm: MPI.Intracomm, saves: Saves | None, newest: Path | None) -> Iterator[None]:
    """Hold the folder of checkpoints against other trainings; rank 0 does so for all. It is made if need be.

    Args:
        comm: all ranks.
        saves: None where nothing is saved.
        newest: the folder's newest checkpoint, as this training has found it.

    Raises:
        InputError: another training holds the folder, or has saved there meanwhile.
        RunError: the folder cannot be written to.
    """
    if saves is None or comm.rank != 0:
        barrier(comm)
        yield
        return
    try:
        make_durable_folder(saves.folder)
    except OSError as error:
        raise RunError(f"{saves.folder}: no folder of checkpoints can be made: {error.strerror}") from error
    with held(saves.folder):
        found = latest(saves.folder)
        if (None if found is None else found.folder) != newest:
            hint = "start again, with --resume"
            raise InputError("another training has just saved there", where=f"--checkpoint {saves.folder}", hint=hint)
        barrier(comm)
        yield


def try_to_save(comm: MPI.Intracomm, saves: Saves, trainer: Trainer, heartbeat: Heartbeat, *, then: str) -> bool:
    """Save the state, all ranks together; whether that went well. If not, rank 0 says so, and what happens `then`."""
    meta = {**checkpoint_meta(trainer.plan, trainer.corpus), "plan_hash": trainer.plan.plan_hash}
    with heartbeat.saving():
        try:
            save(
                saves.folder,
                trainer.step,
                trainer.owned_pieces(),
                meta,
                rank=comm.rank,
                ranks=comm.size,
                all_ok=all_ok(comm),
                keep=saves.keep,
            )
        except UnsavedError as error:
            told = gather(comm, [error.own, str(error)])
            if told is not None:
                say(f"sbplan: {next(text for own, text in told if own)}; {then}")
            return False
    return True


def save_at_last(comm: MPI.Intracomm, saves: Saves, trainer: Trainer, heartbeat: Heartbeat) -> None:
    """Save the state of a training that is over, trying for some time.

    Raises:
        RunError: it cannot be saved.
    """
    for wait_s in LAST_TRIES_S:
        if try_to_save(comm, saves, trainer, heartbeat, then=f"the next try is in {wait_s:g} s"):
            return
        with heartbeat.saving():
            time.sleep(wait_s)
    if not try_to_save(comm, saves, trainer, heartbeat, then="that was the last try"):
        raise RunError(f"step {trainer.step} could not be saved in {saves.folder}; free some space and train anew")
