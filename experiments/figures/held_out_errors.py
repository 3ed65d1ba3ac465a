"""Published training runs: how wrong predictions are by series, by a fit that has not seen the run's group."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from experiments.figures.held_out import HeldOutPoint
from experiments.figures.held_out import data as held_out_points
from experiments.figures.style import COLOURS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data(results: Sequence[ExperimentResult]) -> Sequence[HeldOutPoint]:
    """As `held_out` has them."""
    return held_out_points(results)


def figure(rows: Sequence[HeldOutPoint]) -> Figure:
    """A box per series: the central half, the median; whiskers to the 5th and the 95th percentile."""
    families: dict[str, list[float]] = {}
    for row in rows:
        families.setdefault(row.family, []).append(100 * abs(row.predicted_s / row.measured_s - 1))
    order = sorted(families, key=lambda name: median(families[name]), reverse=True)
    found, (axes,) = panels(1, height_in=0.8 + 0.15 * len(order))
    axes.boxplot(
        [families[name] for name in order], orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6,
        medianprops={"color": COLOURS[1], "linewidth": 1.4}, boxprops={"linewidth": 0.7},
        whiskerprops={"linewidth": 0.7}, capprops={"linewidth": 0.7},
    )  # fmt: skip
    axes.set_yticks(range(1, len(order) + 1), [f"{name} ({len(families[name])})" for name in order], fontsize=6)
    axes.axvline(10, color="black", linewidth=0.6, linestyle=":")
    axes.set(xlabel="error of the predicted step [%]", xlim=(0, None))
    return found
