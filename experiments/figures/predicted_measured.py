"""Predicted against measured step times, before and after refinement; the diagonal is a perfect prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLUMN_IN
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEFORE, AFTER = "#999999", "#0072b2"
"""Grey and blue of the palette of Okabe and Ito (2008), which colour-blind readers tell apart."""


@dataclass(frozen=True, slots=True)
class Point:
    """One plan: seconds per step."""

    name: str
    predicted_s: float
    refined_s: float
    measured_s: float
    samples_s: tuple[float, ...]
    run: int | None = None


def data(results: Sequence[ExperimentResult]) -> Sequence[Point]:
    """The plans of the last run on this machine."""
    return [
        Point(
            plan["name"], plan["predicted_s"], plan["refined_s"], plan["measured_s"], tuple(plan["samples_s"]), one.run
        )
        for one in results[-1:]
        for plan in one.summary["plans"]
    ]


def figure(points: Sequence[Point]) -> Figure:
    """One column of two marks per plan; the horizontal bar spans the central half of the measured steps."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(COLUMN_IN, 3.2), layout="constrained")
    axes = found.subplots()
    figures = [x for p in points for x in (p.predicted_s, p.refined_s, p.measured_s)]
    low, high = 0.85e3 * min(figures), 1.1e3 * max(figures)
    axes.plot([low, high], [low, high], color="black", linewidth=0.8)
    axes.fill_between(
        [low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="black", alpha=0.07, label="within 10 %"
    )
    for kind, colour, marker in (("predicted_s", BEFORE, "o"), ("refined_s", AFTER, "D")):
        label = "before any run" if kind == "predicted_s" else "refined without its run"
        x = [1e3 * p.measured_s for p in points]
        y = [1e3 * getattr(p, kind) for p in points]
        axes.scatter(x, y, color=colour, marker=marker, s=28, zorder=3, label=label)
    for rank, point in enumerate(sorted(points, key=lambda p: p.refined_s)):
        ordered = sorted(point.samples_s)
        quarter = len(ordered) // 4
        axes.hlines(
            1e3 * point.refined_s, 1e3 * ordered[quarter], 1e3 * ordered[-1 - quarter], color=AFTER, linewidth=1
        )
        side, align = (9, "left") if rank % 2 else (-9, "right")  # neighbours on either side, so that they can be read
        place = 1e3 * point.measured_s, 1e3 * point.refined_s
        axes.annotate(point.name, place, (side, -3), textcoords="offset points", ha=align, fontsize=8)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="measured step [ms]", ylabel="predicted step [ms]")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return found
