"""How long each method searches, beside how far its plan is above the bound that ours proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.figures.search_ratios import SearchedStep
from experiments.figures.search_ratios import data as searched_steps
from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data(results: Sequence[ExperimentResult]) -> Sequence[SearchedStep]:
    """Those of `search_ratios` that have an answer."""
    return [row for row in searched_steps(results) if row.step_s is not None and row.bound_s > 0]


def figure(rows: Sequence[SearchedStep]) -> Figure:
    """A mark per problem and method; pricing layers counts for none."""
    found, (axes,) = panels(1, height_in=2.7)
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        points = [
            (row.time_s, 100 * (row.step_s / row.bound_s - 1)) for row in rows if row.method == method and row.step_s
        ]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, color=COLOURS[number], marker=MARKERS[number], s=20, label=method)
    axes.set(xscale="log", xlabel="search [s]", ylabel="above the bound [%]")
    most = max(100 * (row.step_s / row.bound_s - 1) for row in rows if row.step_s)
    axes.set_ylim(0, 1.15 * most)
    axes.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
    axes.minorticks_off()
    found.legend(frameon=False, loc="outside upper center", ncols=3)
    return found
