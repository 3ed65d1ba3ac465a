"""Micro-batches in flight by stage: what a schedule makes every rank stash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class InFlight:
    """Most micro-batches that each rank has stashed at once, in stashes of a whole stage."""

    run: int
    schedule: str
    stages: int
    micro_batches: int
    by_rank: tuple[float, ...]


def data(results: Sequence[ExperimentResult]) -> Sequence[InFlight]:
    """Of each schedule, the most stages with the fewest micro-batches that still fill the pipeline twice."""
    keys = ("schedule", "stages", "micro_batches")
    rows = [
        InFlight(one.run, **{key: one.experiment[key] for key in keys}, by_rank=tuple(one.summary["in_flight"]))
        for one in results
    ]
    stages = max((row.stages for row in rows), default=0)
    enough = [row for row in rows if row.stages == stages and row.micro_batches >= 2 * stages]
    fewest = min((row.micro_batches for row in enough), default=0)
    return [row for row in enough if row.micro_batches == fewest]


def figure(rows: Sequence[InFlight]) -> Figure:
    """A line per schedule."""
    found, (axes,) = panels(1)
    for number, row in enumerate(rows):
        shift = 0.12 * (number - (len(rows) - 1) / 2)  # lines that coincide are seen beside each other
        axes.plot(
            [rank + shift for rank in range(row.stages)], row.by_rank, color=COLOURS[number], marker=MARKERS[number],
            markersize=4, linewidth=1, label=row.schedule,
        )  # fmt: skip
    axes.set(xlabel="rank", ylabel="micro-batches in flight", xticks=range(rows[0].stages))
    axes.set_ylim(bottom=0, top=1.45 * max(max(row.by_rank) for row in rows))
    axes.legend(frameon=False, ncols=3, loc="upper center")
    axes.set_title(f"{rows[0].stages} stages, {rows[0].micro_batches} micro-batches", loc="left")
    return found
