"""Memory of the fullest rank by ZeRO's stage and by what is computed again.

Stage 0 leaves the layouts of parameters, gradients and moments to the search, which shares them out where that pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, panels
from experiments.store.results import ExperimentResult
from strategy.hardware.devices import GIB

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """The plan under one stage of ZeRO and kind of recomputing; where nothing fits, there are no figures."""

    run: int
    model: str
    cluster: str
    zero_stage: int
    recompute: str
    peak_memory_bytes: int | None
    step_time_s: float | None
    memory_limit_bytes: int


def data(results: Sequence[ExperimentResult]) -> Sequence[SavedMemory]:
    """A row per stage and kind."""
    return [
        SavedMemory(
            one.run, one.experiment["model"], one.experiment["cluster"],
            one.experiment["pins"]["zero_stage"], one.experiment["pins"]["recompute"],
            one.summary.get("peak_memory_bytes"), one.summary.get("step_time_s"), one.summary["memory_limit_bytes"],
        )
        for one in results
    ]  # fmt: skip


def figure(rows: Sequence[SavedMemory]) -> Figure:
    """A group of bars per stage; a cross where nothing fits."""
    found, (axes,) = panels(1, height_in=2.8)
    kinds = list(dict.fromkeys(row.recompute for row in rows))
    stages = sorted({row.zero_stage for row in rows})
    limit = rows[0].memory_limit_bytes / GIB
    for number, recompute in enumerate(kinds):
        for row in (row for row in rows if row.recompute == recompute):
            x = stages.index(row.zero_stage) + 0.27 * (number - (len(kinds) - 1) / 2)
            if row.peak_memory_bytes is None:
                axes.plot(x, 0.96 * limit, marker="x", color=COLOURS[number], markersize=5)
            else:
                hatch = ("", "////", "....")[number % 3]
                axes.bar(x, row.peak_memory_bytes / GIB, 0.25, color=COLOURS[number], hatch=hatch, edgecolor="white")
        axes.bar(
            0, 0, color=COLOURS[number], label=recompute, hatch=("", "////", "....")[number % 3], edgecolor="white"
        )
    axes.axhline(limit, color="black", linewidth=0.8, linestyle="--")
    axes.text(len(stages) - 0.5, limit, "device", ha="right", va="bottom", fontsize=7)
    axes.set_xticks(range(len(stages)), [str(stage) if stage else "0 (free)" for stage in stages])
    axes.set(xlabel="ZeRO stage (x: nothing fits)", ylabel="fullest rank [GiB]", ylim=(0, 1.12 * limit))
    title = f"{rows[0].model}, {rows[0].cluster}; recompute"
    found.legend(frameon=False, loc="outside upper center", ncols=3, title=title)
    return found
