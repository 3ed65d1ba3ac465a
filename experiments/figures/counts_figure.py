"""Counts figure: days against GPU-hours of numbers of GPUs, each with its interval and its bound; the front is joined.

A step is off by as much as predictions of systems were of which the fit had not seen a run (`closed_form.interval`):
of a count, days and GPU-hours are off by the same share, so that its interval is one line through its point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, PAGE_IN, SETTINGS, panels
from experiments.planning.gpu_counts import CountAnswer, on_front
from strategy.closed_form.calibration import shipped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def interval() -> float:
    """The upper end of a 90 % interval of a step over its prediction; the lower end is as far below."""
    return math.exp(shipped().strata[""].half_width)


def figure(answers: Sequence[CountAnswer]) -> Figure:
    """Days over GPU-hours, both logarithmic."""
    found, (axes,) = panels(1, width_in=PAGE_IN / 2, height_in=2.8)
    factor = interval()
    front: list[tuple[float, float]] = []
    bounds: list[tuple[float, float]] = []
    for one, is_best in zip(answers, on_front([one.cost for one in answers]), strict=True):
        if one.bound is not None:
            bounds.append((one.bound.gpu_hours, one.bound.days))
        if one.cost is None:
            continue
        hours, days = one.cost.gpu_hours, one.cost.days
        known = None if "90 % interval" in axes.get_legend_handles_labels()[1] else "90 % interval"
        ends = [hours / factor, hours * factor], [days / factor, days * factor]
        axes.plot(*ends, "-", color=COLOURS[0], alpha=0.4, label=known)
        axes.plot(hours, days, "o", color=COLOURS[0] if is_best else COLOURS[1])
        axes.annotate(f"{one.request.devices:,} GPUs", (hours, days), xytext=(5, 3), textcoords="offset points")
        if is_best:
            front.append((hours, days))
    if bounds:
        axes.plot(*zip(*bounds, strict=True), "_", color=COLOURS[6], label="bound: no layout is faster")
    if front:
        axes.plot(*zip(*sorted(front), strict=True), ":", color=COLOURS[0], label="no other count is better in both")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GPU-hours")
    axes.set_ylabel("days")
    axes.margins(x=0.15)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_plain)
        axis.set_minor_formatter(_sparse)
    if bounds or front:
        found.legend(loc="outside upper center", frameon=False)
    return found


def draw(answers: Sequence[CountAnswer], path: Path) -> None:
    """Write the figure; what it is called says the format."""
    import matplotlib

    from experiments.figures.picture import save

    with matplotlib.rc_context(SETTINGS):
        save(figure(answers), path)


def _plain(value: float, _: float) -> str:
    return f"{value:,.10g}"


def _sparse(value: float, _: float) -> str:
    """Twos and fives between powers of ten: more would not fit."""
    return _plain(value, 0) if f"{value:e}"[0] in "25" else ""
