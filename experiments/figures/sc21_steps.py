"""Megatron's SC'21 table: steps by closed form, as trained and with today's kernels, and by simulated acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS_PRICED = {
    "as_trained_s": "closed form, as trained",
    "closed_form_s": "closed form, fused",
    "acts_s": "acts, fused",
}


@dataclass(frozen=True, slots=True)
class TableStep:
    """Seconds of a step of one job, priced in three ways."""

    run: int
    job: str
    gpus: int
    tokens: int
    as_trained_s: float
    closed_form_s: float
    acts_s: float


def data(results: Sequence[ExperimentResult]) -> Sequence[TableStep]:
    """A row per job, by GPUs."""
    rows = (
        TableStep(
            one.run, one.summary["job"], one.summary["gpus"], one.summary["tokens"],
            **{f"{key}_s": one.summary[key]["step_s"] for key in ("as_trained", "closed_form", "acts")},
        )
        for one in results
    )  # fmt: skip
    return sorted(rows, key=lambda row: row.gpus)


def figure(rows: Sequence[TableStep]) -> Figure:
    """Tokens per second and GPU, a mark per way and job."""
    found, (axes,) = panels(1, height_in=2.8)
    for number, (key, name) in enumerate(WAYS_PRICED.items()):
        rates = [row.tokens / row.gpus / getattr(row, key) for row in rows]
        axes.plot(rates, color=COLOURS[number], marker=MARKERS[number], markersize=4, linewidth=1, label=name)
    axes.set_xticks(range(len(rows)), [f"{row.job}\n{row.gpus:,}" for row in rows])
    axes.tick_params(axis="x", labelsize="x-small")  # ten names of two lines, a column wide
    axes.set(xlabel="parameters, A100s", ylabel="tokens/s per GPU", yscale="log")
    axes.legend(frameon=False)
    return found
