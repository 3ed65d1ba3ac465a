"""Where the step goes as GPUs are added: computing, exposed communication, waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.figures.scaling_rate import ScaledStep
from experiments.figures.scaling_rate import data as scaled_steps
from experiments.figures.style import COLOURS, PAGE_IN, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data(results: Sequence[ExperimentResult]) -> Sequence[ScaledStep]:
    """As `scaling_rate` has them."""
    return scaled_steps(results)


def figure(rows: Sequence[ScaledStep]) -> Figure:
    """A panel per series, a bar per number of GPUs; what is idle and not exposed communication is waiting."""
    series = list(dict.fromkeys(row.series for row in rows))
    found, grid = panels(len(series), width_in=PAGE_IN, height_in=2.6, sharey=True)
    for axes, name in zip(grid, series, strict=True):
        mine = sorted((row for row in rows if row.series == name), key=lambda row: row.gpus)
        exposed = [100 * row.exposed_share for row in mine]
        waiting = [100 * max(0.0, row.idle_share - row.exposed_share) for row in mine]
        computing = [100 - one - other for one, other in zip(exposed, waiting, strict=True)]
        bottom = [0.0] * len(mine)
        parts = {"computing": computing, "exposed communication": exposed, "waiting": waiting}
        for number, (part, shares) in enumerate(parts.items()):
            axes.bar(
                [f"{row.gpus:,}" for row in mine], shares, 0.7, bottom, color=COLOURS[number], label=part,
                hatch=("", "////", "....")[number], edgecolor="white", linewidth=0.4,
            )  # fmt: skip
            bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
        axes.set_xlabel("H100s")
        axes.set_title(f"{rows[0].model}, {name}", loc="left")
    grid[0].set_ylabel("share of the step [%]")
    found.legend(*grid[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=3)
    return found
