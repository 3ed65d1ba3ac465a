"""The bubble by schedule and number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, PAGE_IN, doubling, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Bubble:
    """The share of a step in which a rank of a pipeline idles, on average."""

    run: int
    schedule: str
    stages: int
    micro_batches: int
    idle_share: float


def data(results: Sequence[ExperimentResult]) -> Sequence[Bubble]:
    """Every pipeline that was simulated."""
    keys = ("schedule", "stages", "micro_batches")
    return [
        Bubble(one.run, **{key: one.experiment[key] for key in keys}, idle_share=one.summary["idle_share"])
        for one in results
    ]


def figure(rows: Sequence[Bubble]) -> Figure:
    """A line per schedule, a panel per number of stages."""
    stages = sorted({row.stages for row in rows})
    schedules = list(dict.fromkeys(row.schedule for row in rows))
    found, grid = panels(len(stages), width_in=PAGE_IN, height_in=2.5, sharey=True)
    for axes, count in zip(grid, stages, strict=True):
        for number, schedule in enumerate(schedules):
            mine = sorted((r.micro_batches, r.idle_share) for r in rows if (r.stages, r.schedule) == (count, schedule))
            dashes = "--" if schedule == "1f1b" else "-"  # lies on GPipe's, whose stages are alike too
            axes.plot(
                [m for m, _ in mine], [100 * share for _, share in mine], dashes, color=COLOURS[number],
                marker=MARKERS[number], markersize=4, linewidth=1.2, label=schedule,
            )  # fmt: skip
        doubling(axes, sorted({row.micro_batches for row in rows}), "micro-batches")
        axes.set_title(f"{count} stages", loc="left")
    grid[0].set_ylabel("idle share of a step [%]")
    grid[0].set_ylim(0, 105 * max(row.idle_share for row in rows))
    grid[-1].legend(frameon=False)
    return found
