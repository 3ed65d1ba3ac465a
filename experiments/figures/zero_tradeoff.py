"""What memory costs: the step by the memory that ZeRO and recomputing leave in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.figures.zero_memory import SavedMemory
from experiments.figures.zero_memory import data as memory_rows
from experiments.store.results import ExperimentResult
from strategy.hardware.devices import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data(results: Sequence[ExperimentResult]) -> Sequence[SavedMemory]:
    """Those of `zero_memory` that fit."""
    return [row for row in memory_rows(results) if row.step_time_s is not None]


def _nearly_equal(one: float, other: float) -> bool:
    return abs(one - other) <= 0.02 * max(one, other)


def figure(rows: Sequence[SavedMemory]) -> Figure:
    """A mark per plan: the colour says what is computed again, the number the stage of ZeRO."""
    found, (axes,) = panels(1)
    for number, recompute in enumerate(dict.fromkeys(row.recompute for row in rows)):
        mine = [row for row in rows if row.recompute == recompute]
        points = [((row.peak_memory_bytes or 0) / GIB, row.step_time_s or 0.0) for row in mine]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, color=COLOURS[number], marker=MARKERS[number], s=22, label=recompute)
        stages: dict[tuple[float, float], list[str]] = {}  # plans that cannot be told from each other share a label
        for row, point in zip(mine, points, strict=True):
            near = (other for other in stages if all(map(_nearly_equal, point, other)))
            stages.setdefault(next(near, point), []).append(str(row.zero_stage))
        for point, names in stages.items():
            axes.annotate(", ".join(names), point, (5, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel="fullest rank [GiB]", ylabel="step [s]")
    axes.margins(0.12)
    title = "recompute (number: ZeRO stage, 0 free)"
    found.legend(frameon=False, title=title, title_fontsize=7, loc="outside upper center", ncols=3)
    return found
