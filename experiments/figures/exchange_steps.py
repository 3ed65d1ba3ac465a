"""Scaling of data parallelism under systems' exchanges of gradients, on V100s over TCP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, PAGE_IN, doubling, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ExchangedStep:
    """A step under one system; `efficiency` is the throughput of a GPU over that of one alone."""

    run: int
    model: str
    gpus: int
    system: str
    step_time_s: float
    efficiency: float


def data(results: Sequence[ExperimentResult]) -> Sequence[ExchangedStep]:
    """A row per model, number of GPUs and system."""
    return [
        ExchangedStep(
            one.run, one.experiment["model"], one.summary["gpus"], system, found["step_time_s"], found["efficiency"]
        )
        for one in results
        for system, found in one.summary["systems"].items()
    ]


def figure(rows: Sequence[ExchangedStep]) -> Figure:
    """A line per system, a panel per model."""
    models = list(dict.fromkeys(row.model for row in rows))
    systems = list(dict.fromkeys(row.system for row in rows))
    found, grid = panels(len(models), width_in=PAGE_IN, sharey=True)
    for axes, model in zip(grid, models, strict=True):
        for number, system in enumerate(systems):
            mine = sorted((r.gpus, r.efficiency) for r in rows if (r.model, r.system) == (model, system))
            axes.plot(
                [gpus for gpus, _ in mine], [100 * share for _, share in mine], color=COLOURS[number],
                marker=MARKERS[number], markersize=4, linewidth=1.2, label=system,
            )  # fmt: skip
        doubling(axes, sorted({row.gpus for row in rows}), "V100s")
        axes.set_title(model, loc="left")
        axes.set_ylim(0, 104)
    grid[0].set_ylabel("scaling efficiency [%]")
    grid[0].legend(frameon=False, loc="lower left")
    return found
