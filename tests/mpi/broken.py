"""`sbplan` with a mock of something broken: in one step of one rank, from its last micro-batch on.

python -m tests.mpi.broken WHAT RANK STEP train PLAN ...

    nan     every GELU writes a number that is none, and leaves a line in the file `poisoned`
    raise   a GELU raises
    lose    no movement begun there ever comes to its end, nor is it begun with others; a stall is one after STALL_S
    held    nothing; but a rank that is stopped by a signal is to blame after STOP_S
    die     it kills itself inside of a collective: before, while or after its data move; which one, STEP and RANK say
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from executor.runtime.transport.base import PendingTransfer
from executor.supervision import watchdog
from executor.supervision.environment import find_rank
from strategy.graph.ops.base import Call, OpDef

MICRO_BATCHES = 2
"""Of the small plans."""
STALL_S = 2.0
STOP_S = 2.0
KIND = "gelu"


def main(argv: list[str]) -> int:
    """Run the verb of a rank, with the mock in place."""
    what, victim, step = argv[0], int(argv[1]), int(argv[2])
    if what == "lose":
        watchdog.Limits = partial(watchdog.Limits, stall_s=STALL_S)  # type: ignore[misc]
    elif what == "held":
        watchdog.Limits = partial(watchdog.Limits, stop_s=STOP_S)  # type: ignore[misc]
    from experiments.verbs import train

    original = train._train

    def broken(args: object) -> int:
        me = find_rank()
        if me is not None and me.rank == victim and what != "held":
            # NumPy and MPI are imported in the rank alone.
            if what == "die":
                die_in_a_collective(step, random.Random(step * 64 + victim))
            else:
                break_kernels({"nan": write_nan, "raise": complain, "lose": lose}[what], step * MICRO_BATCHES - 1)
        return original(args)  # type: ignore[arg-type]

    train._train = broken  # type: ignore[assignment]
    from experiments.cli import main as command

    return command(argv[3:])


def break_kernels(what: Callable[[Call], None], number: int) -> None:
    """Do this to every act of KIND with this number, when it is done."""
    from executor.runtime.kernels.bound_act import BoundAct
    from executor.runtime.kernels.numpy import NumpyKernels

    bind = NumpyKernels.bind

    def broken(self: NumpyKernels, definition: OpDef, call: Call) -> BoundAct:
        right = bind(self, definition, call)

        def run() -> None:
            right.run()
            if definition.kind == KIND and call.number == number:
                what(call)

        return BoundAct(run)

    NumpyKernels.bind = broken  # type: ignore[method-assign]


def write_nan(call: Call) -> None:
    """One cell."""
    call.outputs[0].reshape(-1)[0] = float("nan")
    with Path("poisoned").open("a") as file:
        file.write(f"{os.getpid()}\n")


def complain(call: Call) -> None:
    """As a bug does."""
    raise ValueError(f"act {call.number} is unwell")


def lose(call: Call) -> None:
    """From now on nothing is moved."""
    from executor.runtime.transport.mpi import MpiTransport

    def lost(*arguments: object) -> _Lost:
        return _Lost()

    for name in ("exchange", "all_gather", "send", "receive"):
        setattr(MpiTransport, name, lost)


def die_in_a_collective(step: int, rng: random.Random) -> None:
    """From this step on, one of the first movements of a group is this rank's last."""
    from executor.runtime.transport.mpi import MpiTransport
    from executor.train import Trainer

    left, when = rng.randrange(6), rng.choice(("before", "while", "after"))
    run, armed = Trainer.run, False

    def stepping(self: Trainer) -> object:
        nonlocal armed
        armed = armed or self.step + 1 >= step
        return run(self)

    def deadly(begin: Callable[..., PendingTransfer]) -> Callable[..., PendingTransfer]:
        def movement(*arguments: object) -> PendingTransfer:
            nonlocal left
            left -= armed
            if not armed or left >= 0:
                return begin(*arguments)
            if when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            return _LastOne(begin(*arguments), through=when == "after")

        return movement

    Trainer.run = stepping  # type: ignore[method-assign,assignment]
    for name in ("exchange", "all_gather"):
        setattr(MpiTransport, name, deadly(getattr(MpiTransport, name)))


class _LastOne:
    """A movement that ends its rank, at the first look at it or when its data are through."""

    def __init__(self, begun: PendingTransfer, *, through: bool) -> None:
        self._begun, self._through = begun, through

    def test(self) -> bool:
        if not self._through or self._begun.test():
            os.kill(os.getpid(), signal.SIGKILL)
        return False

    def describe(self) -> str:
        """For people."""
        return self._begun.describe()


class _Lost:
    """What never comes."""

    def test(self) -> bool:
        """It has not."""
        return False

    def describe(self) -> str:
        """For people."""
        return "what is lost"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
