"""Megatron's SC'21 table: by what simulated acts differ from the closed form, in percent of its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class DifferenceByCause:
    """Seconds of the acts over those of the closed form that one cause adds, as a share of the closed form's step."""

    run: int
    job: str
    gpus: int
    cause: str
    share: float


def data(results: Sequence[ExperimentResult]) -> Sequence[DifferenceByCause]:
    """A row per job and cause."""
    rows = (
        DifferenceByCause(
            one.run, one.summary["job"], one.summary["gpus"], cause, seconds / one.summary["closed_form"]["step_s"]
        )
        for one in results
        for cause, seconds in one.summary["difference"].items()
    )
    return sorted(rows, key=lambda row: row.gpus)


def figure(rows: Sequence[DifferenceByCause]) -> Figure:
    """A bar per job, of causes on top of each other, those that shorten a step below zero."""
    found, (axes,) = panels(1, height_in=2.8)
    jobs, causes = (list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("job", "cause"))
    up, down = [0.0] * len(jobs), [0.0] * len(jobs)
    for number, cause in enumerate(causes):
        shares = [next(100 * row.share for row in rows if (row.job, row.cause) == (job, cause)) for job in jobs]
        bottoms = [up[i] if share > 0 else down[i] for i, share in enumerate(shares)]
        axes.bar(
            jobs, shares, 0.7, bottoms, color=COLOURS[number], label=cause.replace("_", " "), edgecolor="white",
            linewidth=0.4, hatch=("", "////", "....", "xxxx")[number % 4],
        )  # fmt: skip
        up = [old + max(share, 0) for old, share in zip(up, shares, strict=True)]
        down = [old + min(share, 0) for old, share in zip(down, shares, strict=True)]
    axes.axhline(0, color="black", linewidth=0.8)
    axes.tick_params(axis="x", rotation=45)
    axes.set(xlabel="parameters", ylabel="acts over closed form [%]")
    found.legend(frameon=False, loc="outside upper center", ncols=2)
    return found
