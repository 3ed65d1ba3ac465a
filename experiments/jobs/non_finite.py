"""A step whose loss or gradients are not finite changes nothing: the act that began it is found, and all stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from executor.supervision.heartbeat import Heartbeat
from executor.train import Trainer
from experiments.command.console import say
from experiments.jobs.ranks import barrier, broadcast, gather, highest
from experiments.jobs.saving import Saver
from strategy.base.errors import InternalError, RunError

if TYPE_CHECKING:
    from mpi4py import MPI


def stop_at_non_finite(comm: MPI.Intracomm, trainer: Trainer, heartbeat: Heartbeat, saver: Saver | None) -> NoReturn:
    """Run the last step once more to find its first act that is not finite; save the state before it; stop.

    Raises:
        RunError: always; on the rank of that act, which is said to have failed there.
    """
    step = trainer.step
    was_finite = not highest(comm, (int(not trainer.state_is_finite()),))[0]
    found = trainer.find_non_finite()
    every = gather(comm, None if found is None else (found.time_ns, found.actor, found.number, found.what))
    seen = [] if every is None else [(*one, rank) for rank, one in enumerate(every) if one is not None]
    first = broadcast(comm, min(seen, default=None))
    trainer.step -= 1
    if saver is not None:
        saver.finish()
        if was_finite and saver.saved_step < trainer.step:
            saved = saver.save_now(then="the training ends")
            if saved and comm.rank == 0:
                say(f"sbplan: the state before step {step} is saved in {saver.saves.folder}")
    how = "the state was finite before it" if was_finite else "the state before it was not finite already"
    if first is None:
        message = f"the loss or a gradient of step {step} is not finite, but all is when it is run again; {how}"
        _end(comm, message, by=0)
    _, actor, number, what, rank = first
    acts = trainer.program.actors[actor].acts_per_step
    if comm.rank == rank:
        heartbeat.beat(actor, (step - 1) * acts + number % acts)
    where = f"micro-batch {number % acts + 1} of {acts}, " if acts > 1 else ""
    hint = "a smaller learning rate, loss scaling, or a plan with skip_nonfinite may help"
    _end(
        comm, f"the first {what} of step {step}, {where}whose loss or gradients are not finite; {how}; {hint}", by=rank
    )


def _end(comm: MPI.Intracomm, message: str, *, by: int) -> NoReturn:
    """One rank fails, and so ends the others, who wait for that."""
    if comm.rank == by:
        raise RunError(message)
    barrier(comm)
    raise InternalError("a rank that was to fail did not")
