"""Scaling of searched plans to thousands of GPUs: tokens per second and GPU, as simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, doubling, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class ScaledStep:
    """A plan on so many GPUs; `series` is what grows with them, shares are of its step."""

    run: int
    series: str
    model: str
    gpus: int
    global_batch: int
    step_time_s: float
    tokens_per_s: float
    mfu: float
    gap: float
    idle_share: float
    exposed_share: float


def data(results: Sequence[ExperimentResult]) -> Sequence[ScaledStep]:
    """A row per search that found a plan."""
    return [
        ScaledStep(
            one.run, one.experiment["series"], one.experiment["model"], one.summary["gpus"],
            one.experiment["global_batch"],
            **{key: one.summary[key] for key in ("step_time_s", "tokens_per_s", "mfu", "gap", "idle_share")},
            exposed_share=one.summary["exposed_communication_s"] / one.summary["step_time_s"],
        )
        for one in results
        if "step_time_s" in one.summary
    ]  # fmt: skip


def figure(rows: Sequence[ScaledStep]) -> Figure:
    """A line per series."""
    found, (axes,) = panels(1)
    for number, series in enumerate(dict.fromkeys(row.series for row in rows)):
        mine = sorted((row.gpus, row.tokens_per_s / row.gpus) for row in rows if row.series == series)
        axes.plot(
            *zip(*mine, strict=True), color=COLOURS[number], marker=MARKERS[number], markersize=4, linewidth=1.2,
            label=series,
        )  # fmt: skip
    doubling(axes, sorted({row.gpus for row in rows}), "H100s")
    axes.set_ylabel("tokens/s per GPU")
    axes.set_ylim(0, 1.12 * max(row.tokens_per_s / row.gpus for row in rows))
    axes.set_title(rows[0].model, loc="left")
    axes.legend(frameon=False, loc="lower left")
    return found
