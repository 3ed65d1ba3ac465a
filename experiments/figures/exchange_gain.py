"""What Perseus gains over Horovod and BytePS, by model and number of GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, doubling, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "perseus"


@dataclass(frozen=True, slots=True)
class ExchangeGain:
    """How many times as long a step takes under another system as under Perseus."""

    run: int
    model: str
    gpus: int
    over: str
    speed_up: float


def data(results: Sequence[ExperimentResult]) -> Sequence[ExchangeGain]:
    """A row per model, number of GPUs and other system."""
    rows = []
    for one in results:
        systems = one.summary["systems"]
        for system, found in systems.items() if OURS in systems else ():
            if system != OURS:
                gain = found["step_time_s"] / systems[OURS]["step_time_s"]
                rows.append(ExchangeGain(one.run, one.experiment["model"], one.summary["gpus"], system, gain))
    return rows


def figure(rows: Sequence[ExchangeGain]) -> Figure:
    """A colour per model; full lines over the first other system, dashed ones over the second."""
    found, (axes,) = panels(1, height_in=2.8)
    axes.axhline(1, color="black", linewidth=0.8)
    models, others = (list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("model", "over"))
    for number, model in enumerate(models):
        for dashes, other in zip(("-", "--", ":", "-."), others, strict=False):
            mine = sorted((row.gpus, row.speed_up) for row in rows if (row.model, row.over) == (model, other))
            axes.plot(
                [gpus for gpus, _ in mine], [gain for _, gain in mine], dashes, color=COLOURS[number],
                marker=MARKERS[number], markersize=4, linewidth=1.2, label=f"{model}, over {other}",
            )  # fmt: skip
    doubling(axes, sorted({row.gpus for row in rows}), "V100s, 25 Gbit/s of TCP per node of eight")
    axes.set_ylabel("speed-up by Perseus")
    found.legend(frameon=False, loc="outside upper center", ncols=2)
    return found
