"""`sbplan` looking for reference cycles: what steps leave that the garbage collector alone can free, a file per rank.

python -m tests.mpi.reference_cycles FOLDER FIRST LAST train PLAN ...      of the steps after FIRST, up to LAST
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str]) -> int:
    """Run the verb of a rank, and look."""
    folder, first, last = Path(argv[0]), int(argv[1]), int(argv[2])
    from experiments.verbs import train

    original = train._train

    def watched(args: Any) -> int:
        # NumPy and MPI are imported in the rank alone.
        look_at_steps(folder, first, last)
        return original(args)

    train._train = watched
    from experiments.cli import main as command

    return command(argv[3:])


def look_at_steps(folder: Path, first: int, last: int) -> None:
    """Have every trainer keep what its steps leave."""
    from executor.train import StepReport, Trainer

    step = Trainer.run

    def run(trainer: Trainer) -> StepReport | None:
        if trainer.step == first:
            gc.collect()
            gc.disable()
        report = step(trainer)
        if trainer.step == last:
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            gc.set_debug(0)
            gc.enable()
            found = Counter(f"{type(one).__name__} {getattr(one, '__qualname__', '')}" for one in gc.garbage)
            (folder / f"cycles.{trainer.rank}").write_text(json.dumps(found))
        return report

    Trainer.run = run  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
