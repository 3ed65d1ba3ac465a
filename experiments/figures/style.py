"""Style of figures: widths of a page's columns, and colours and markers that colour-blind readers tell apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN_IN, PAGE_IN = 3.4, 7.0
"""Inches: one column of a page of two, and both."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito (2008)."""
MARKERS = "osD^vP*"
SETTINGS: dict[Any, Any] = {
    **{"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7},
    **{"xtick.labelsize": 7, "ytick.labelsize": 7},
}
"""What all figures are drawn with (matplotlib's rcParams)."""


def panels(count: int, *, width_in: float = COLUMN_IN, height_in: float = 2.4, **how: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, without upper and right spines."""
    from matplotlib.figure import Figure

    found = Figure(figsize=(width_in, height_in), layout="constrained")
    axes = list(found.subplots(1, count, squeeze=False, **how)[0])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return found, axes


def doubling(axes: Axes, values: list[int], label: str) -> None:
    """An axis on which what doubles is equally far apart, with a tick at every value."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
    axes.set_xlabel(label)
