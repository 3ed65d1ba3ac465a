"""Published training runs: the step as measured, and as predicted by a fit that has not seen the run's group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, PAGE_IN
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class HeldOutPoint:
    """One run: seconds per step as measured, and as predicted with a 90 % interval."""

    run: int
    family: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


def data(results: Sequence[ExperimentResult]) -> Sequence[HeldOutPoint]:
    """Every open run that is predicted."""
    return [HeldOutPoint(one.run, **point) for one in results for point in one.summary["points"]]


def figure(points: Sequence[HeldOutPoint]) -> Figure:
    """Both on logarithmic axes, and below the ratio of the two; a colour and a marker per series of measurements."""
    from matplotlib.figure import Figure

    families = sorted({point.family for point in points})
    markers = "osD^v<>pX*"
    found = Figure(figsize=(PAGE_IN, 4.6), layout="constrained")
    upper, lower = found.subplots(2, 1, sharex=True, height_ratios=[3, 1.4])
    times = [seconds for point in points for seconds in (point.measured_s, point.predicted_s)]
    ends = [0.8 * min(times), 1.25 * max(times)]
    upper.plot(ends, ends, color="black", linewidth=0.8, zorder=1)
    lower.axhline(1, color="black", linewidth=0.8, zorder=1)
    for axes, line in ((upper, ends), (lower, [1.0, 1.0])):
        low, high = ([y * factor for y in line] for factor in (1 / 1.1, 1.1))
        axes.fill_between(ends, low, high, color="black", alpha=0.08, linewidth=0)
    for number, family in enumerate(families):
        mine = [point for point in points if point.family == family]
        style = {
            "s": 11, "color": COLOURS[number % len(COLOURS)], "marker": markers[number // len(COLOURS)],
            "linewidths": 0, "alpha": 0.8,
        }  # fmt: skip
        x = [point.measured_s for point in mine]
        upper.scatter(x, [point.predicted_s for point in mine], label=f"{family} ({len(mine)})", **style)
        lower.scatter(x, [point.predicted_s / point.measured_s for point in mine], **style)
    upper.set(xscale="log", yscale="log", xlim=ends, ylim=ends, ylabel="predicted step [s]")
    lower.set(yscale="log", ylim=(0.5, 2), ylabel="predicted / measured", xlabel="measured step [s]")
    lower.set_yticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
    lower.minorticks_off()
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    found.legend(loc="outside right upper", frameon=False, fontsize=7, title="series (runs)", title_fontsize=7)
    return found
