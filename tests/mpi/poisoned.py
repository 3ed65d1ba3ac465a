"""`sbplan` with a mock of a broken kernel: on one rank, in one step, ops of a kind write a number that is none.

python -m tests.mpi.poisoned RANK KIND STEP train PLAN ...      each time leaves a line in the file `poisoned`
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from executor.supervision.environment import find_rank
from strategy.graph.ops.base import Call, OpDef

MICRO_BATCHES = 2
"""Of the small plans."""


def main(argv: list[str]) -> int:
    """Run the verb of a rank, with the mock in place."""
    victim, kind, step = int(argv[0]), argv[1], int(argv[2])

    def poison() -> None:
        # NumPy is imported in the rank alone.
        from executor.runtime.kernels.numpy import NumpyKernels

        run = NumpyKernels.run

        def broken(self: NumpyKernels, definition: OpDef, call: Call) -> None:
            run(self, definition, call)
            if definition.kind == kind and call.number == step * MICRO_BATCHES - 1:
                call.outputs[0].reshape(-1)[0] = float("nan")
                with Path("poisoned").open("a") as file:
                    file.write(f"{os.getpid()}\n")

        NumpyKernels.run = broken  # type: ignore[method-assign]

    from experiments.verbs import train

    original = train._train

    def poisoned(args: object) -> int:
        me = find_rank()
        if me is not None and me.rank == victim:
            poison()
        return original(args)  # type: ignore[arg-type]

    train._train = poisoned  # type: ignore[assignment]
    from experiments.cli import main as command

    return command(argv[3:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
