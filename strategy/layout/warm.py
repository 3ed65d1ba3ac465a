"""Compiles what prices layouts and schedules once, so that no search waits: `python -m strategy.layout.warm`."""

from __future__ import annotations

import numpy as np

from strategy.base.compiled import CompiledLoop
from strategy.comm import exchanged
from strategy.layout import critical_path, makespan
from strategy.layout.makespan import PipelineTimes, makespan_ns, makespans_ns
from strategy.layout.schedule import Schedule


def warm() -> None:
    """Runs every loop on a pipeline of two stages, and on a group of two ranks, with the types that it always has."""
    for loop in (*vars(makespan).values(), *vars(critical_path).values(), *vars(exchanged).values()):
        if isinstance(loop, CompiledLoop):
            loop.load()
    for cases in ((), (1,)):
        chunks, messages, step = (np.ones((*cases, *shape), np.int64) for shape in ((2, 1), (1,), (2,)))
        passes, once = (chunks, chunks, chunks), (step, step, step)
        times = PipelineTimes(*passes, messages, messages, *once, *passes, chunks, chunks, step)
        for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
            (makespans_ns if cases else makespan_ns)(schedule, 40, times)
            if not cases:
                critical_path.critical_path(schedule, 40, times)
    exchanged.exchanged(np.array([[4]]), (2,), *np.zeros((2, 1, 2, 1), np.int64))


if __name__ == "__main__":
    warm()
