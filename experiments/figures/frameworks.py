"""OneFlow over Megatron on the published configurations that both ran: simulated beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class FrameworkGain:
    """Megatron's step over OneFlow's on one configuration."""

    run: int
    configuration: str
    simulated: float
    measured: float


def data(results: Sequence[ExperimentResult]) -> Sequence[FrameworkGain]:
    """A row per configuration, least measured gain first."""
    rows = []
    for one in results:
        steps = {(step["configuration"], step["system"]): step for step in one.summary["steps"]}
        for name in dict.fromkeys(configuration for configuration, _ in steps):
            theirs, ours = steps[name, "megatron"], steps[name, "oneflow"]
            simulated, measured = (theirs[key] / ours[key] for key in ("simulated_s", "measured_s"))
            rows.append(FrameworkGain(one.run, name, simulated, measured))
    return sorted(rows, key=lambda row: row.measured)


def figure(rows: Sequence[FrameworkGain]) -> Figure:
    """Two marks per configuration, joined by a line."""
    found, (axes,) = panels(1, height_in=0.9 + 0.22 * len(rows))
    for place, row in enumerate(rows):
        axes.hlines(place, row.simulated, row.measured, color="black", alpha=0.3, linewidth=1)
    for number, key in enumerate(("measured", "simulated")):
        axes.scatter(
            [getattr(row, key) for row in rows], range(len(rows)), color=COLOURS[number], marker=MARKERS[number], s=18,
            zorder=3, label=key,
        )  # fmt: skip
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.configuration.replace("_", " ") for row in rows])
    axes.set_xlabel("Megatron's step over OneFlow's")
    axes.legend(frameon=False, loc="lower right")
    return found
