"""Predictions: one line per row, each the mean over the jobs that the row may have been."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.command.outputs import csv_text
from experiments.published.rows import Row, defaults
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.estimate import estimate
from strategy.closed_form.products import Floats
from strategy.closed_form.work import JobWork
from strategy.hardware.devices import GIB

COLUMNS = (
    "row_id", "status", "iter_time_s", "iter_time_lo_s", "iter_time_hi_s", "mem_gib_per_gpu", "mem_allocated_gib",
    "mem_reserved_gib", "oom", "extrapolated", "defaults",
)  # fmt: skip
RESERVED = ("torchtitan", "internevo", "primus")
"""Frameworks whose reports are of reserved memory; the others' are what the driver sees."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """Which of many jobs each row may have been: `owner` is a job's row, `weights` sum to 1 within a row."""

    owner: np.ndarray[tuple[int], np.dtype[np.intp]]
    weights: Floats
    rows: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Mixture:
        """The mixture of rows that have candidates."""
        counts = [len(row.candidates) for row in rows]
        weights = np.array([candidate.weight for row in rows for candidate in row.candidates])
        return cls(np.repeat(np.arange(len(rows)), counts), weights, len(rows))

    def mean(self, values: Floats) -> Floats:
        """Mean over each row's jobs."""
        return np.bincount(self.owner, self.weights * values, minlength=self.rows).astype(float)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is said of one row; `status` is "ok" or "unsupported: why"."""

    row_id: str
    status: str
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    memory_gib: float = 0.0
    allocated_gib: float = 0.0
    reserved_gib: float = 0.0
    out_of_memory: bool = False
    extrapolated: tuple[str, ...] = ()
    defaults: str = ""

    def memory(self, column: str) -> float:
        """GiB of what a column of measured memory says."""
        by_column = {"mem_allocated_peak_gib": self.allocated_gib, "mem_reserved_peak_gib": self.reserved_gib}
        return by_column.get(column, self.memory_gib)


def predict(rows: Sequence[Row], fitted: FittedConstants, work: JobWork | None = None) -> list[Prediction]:
    """Predict rows, in their order; `work` is that of all their candidates, where it has been measured already."""
    able = [row for row in rows if row.candidates]
    found: dict[str, Prediction] = {}
    if able:
        mixture = Mixture.of(able)
        jobs = [candidate.job for row in able for candidate in row.candidates]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # told below, row by row
            estimates = estimate(jobs, fitted, work)
        reports = np.array([job.framework in RESERVED for job in jobs])
        held = np.where(reports, estimates.footprint.reserved, estimates.footprint.driver)
        columns = [mixture.mean(values) for values in (
            estimates.seconds, estimates.low, estimates.high, held / GIB, estimates.footprint.allocated / GIB,
            estimates.footprint.reserved / GIB,
            estimates.out_of_memory.astype(float),
        )]  # fmt: skip
        first = np.searchsorted(mixture.owner, np.arange(len(able)))
        for row, place, seconds, low, high, memory, allocated, reserved, over in zip(
            able, first.tolist(), *columns, strict=True
        ):
            if not np.isfinite([seconds, low, high, memory]).all():
                why = "unsupported: no finite prediction follows from its figures"
                found[row.cells["row_id"]] = Prediction(row.cells["row_id"], why)
                continue
            found[row.cells["row_id"]] = Prediction(
                row.cells["row_id"],
                "ok",
                seconds=float(seconds),
                low=float(low),
                high=float(high),
                memory_gib=float(memory),
                allocated_gib=float(allocated),
                reserved_gib=float(reserved),
                out_of_memory=bool(over > 0.999),
                extrapolated=estimates.extrapolated[place],
                defaults=defaults(row),
            )
    return [
        found.get(row.cells["row_id"]) or Prediction(row.cells["row_id"], f"unsupported: {row.why_not}") for row in rows
    ]


def as_csv(predictions: Sequence[Prediction]) -> str:
    """The file of predictions; what is not predicted is empty."""
    lines = []
    for p in predictions:
        values = (p.seconds, p.low, p.high, p.memory_gib, p.allocated_gib, p.reserved_gib)
        figures = [f"{value:.6g}" if p.status == "ok" else "" for value in values]
        flag = "yes" if p.out_of_memory else ""
        lines.append([p.row_id, p.status, *figures, flag, "; ".join(p.extrapolated), p.defaults])
    return csv_text([COLUMNS, *lines])
