"""Saving: when a training writes its state, where, and what happens when it cannot.

At the end of a step every rank copies its part of the state; a thread writes the copy while the rank trains on, and at
the ends of the steps that follow the ranks tell each other how far they are. One save is under way at a time: the next
one that is due waits for it.

One training at a time holds a folder of checkpoints. A save that fails ends nothing: the state stays in memory, and the
next save that is due is the next try. Only what cannot be saved at the end of the training fails it, after some tries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from executor.checkpoint import Save, UnsavedError, latest, make_durable_folder
from executor.supervision.heartbeat import Heartbeat
from executor.train import Trainer, checkpoint_meta
from experiments.command.console import say
from experiments.jobs.ranks import all_ok, barrier, gather
from strategy.base.errors import InputError, RunError, present
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


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the save under way stands on a rank; `highest` of all ranks is where it stands on all.

    `busy` while the thread is at work on a stage, `failed` if that went wrong; both False where nothing is under way.
    """

    busy: bool = False
    failed: bool = False


@final
class Saver:
    """The saves of one rank, at the same steps as all others'.

    Args:
        comm: all ranks; they call every method together, but `stage`.
        saves: where and how often.
        trainer: whose state.
        heartbeat: tells the watcher where this rank waits for a save.
        steps: the last step of the training.
    """

    def __init__(
        self, comm: MPI.Intracomm, saves: Saves, trainer: Trainer, heartbeat: Heartbeat, *, steps: int
    ) -> None:
        self.saves = saves
        self.saved_step = trainer.step
        self._comm, self._trainer, self._heartbeat, self._steps = comm, trainer, heartbeat, steps
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._save: Save | None = None
        self._part: Future[None] | None = None

    def stage(self) -> Stage:
        """Where the save under way stands here."""
        if self._save is None or self._part is None:
            return Stage()
        if not self._part.done():
            return Stage(busy=True)
        self._part.result()
        return Stage(failed=not self._save.is_well)

    def go_on(self, of_all: Stage) -> None:
        """Go on with the save under way, if all ranks are through with a stage."""
        if self._save is not None and not of_all.busy:
            self._agree(not of_all.failed, self._saves_next)

    def begin(self) -> None:
        """Copy the state, and begin to save it, when the save before is over."""
        self.finish()
        self._start(self._saves_next)

    def finish(self) -> None:
        """Wait until nothing is under way."""
        self._wait_for_all(self._saves_next)

    def save_now(self, *, then: str) -> bool:
        """Save the state, and wait for that; whether it went well. If not, rank 0 says so, and what happens `then`."""
        self.finish()
        self._start(then)
        self._wait_for_all(then)
        return self.saved_step == self._trainer.step

    def save_at_last(self) -> None:
        """Save the state of a training that is over, trying for some time.

        Raises:
            RunError: it cannot be saved.
        """
        for wait_s in LAST_TRIES_S:
            if self.save_now(then=f"the next try is in {wait_s:g} s"):
                return
            with self._heartbeat.saving():
                time.sleep(wait_s)
        if not self.save_now(then="that was the last try"):
            step, folder = self._trainer.step, self.saves.folder
            raise RunError(f"step {step} could not be saved in {folder}; free some space and train anew")

    @property
    def _saves_next(self) -> str:
        """What happens after a save that failed beside the training."""
        step = self._trainer.step if self._save is None else self._save.step
        return f"the training goes on, and saves next at step {min(step + self.saves.every, self._steps)}"

    def _start(self, then: str) -> None:
        trainer, comm = self._trainer, self._comm
        meta = checkpoint_meta(trainer.plan, trainer.corpus, bitwise=trainer.bitwise)
        meta["plan_hash"] = trainer.plan.plan_hash
        with self._heartbeat.saving():
            pieces, keep = trainer.owned_pieces(), self.saves.keep
            self._save = Save(self.saves.folder, trainer.step, pieces, meta, rank=comm.rank, ranks=comm.size, keep=keep)
            # Making the folder takes no time, and saves the wait for another step's end.
            self._save.run()
            self._agree(all_ok(comm)(self._save.is_well), then)

    def _agree(self, ok: bool, then: str) -> None:
        """Begin the next stage, or come to an end."""
        save = present(self._save, "a save under way")
        try:
            save.agree(ok)
        except UnsavedError as error:
            self._save = self._part = None
            told = gather(self._comm, [error.own, str(error)])
            if told is not None:
                say(f"sbplan: {next(text for own, text in told if own)}; {then}")
            return
        if save.is_over:
            self._save = self._part = None
            self.saved_step = save.step
        else:
            self._part = self._thread.submit(save.run)

    def _wait_for_all(self, then: str) -> None:
        with self._heartbeat.saving():
            while self._save is not None:
                present(self._part, "a stage under way").result()
                self._agree(all_ok(self._comm)(self._save.is_well), then)
