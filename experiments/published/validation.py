"""Validation: how well runs are predicted that the fit has not seen, per family of published measurements.

Two ways to hold runs out: whole groups (a model on a GPU) within every family, in five folds; and whole families, which
then are predicted from data sheets and from what others ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.published.fitting import (
    Mask,
    Runs,
    fit_collectives,
    fit_memory,
    fit_time,
    read_all_reduces,
    read_runs,
    reference,
)  # fmt: skip
from experiments.published.predictions import Prediction, predict
from experiments.published.rows import Row, read_rows
from experiments.published.scores import Choice, Score, choices, family_of, measured_seconds, score
from strategy.closed_form import collectives
from strategy.closed_form.calibration import TIME, FittedConstants
from strategy.closed_form.constants import Constants, nominal
from strategy.closed_form.fit import Fit
from strategy.closed_form.gemm import Floats
from strategy.closed_form.interval import Stratum, strata, stratum_of

FOLDS = 5
_FEWEST_GROUPS = 3
CALCULON = {
    "sc21_t2": 0.108, "vtrain_multi": 0.15, "vtrain_single": 0.39, "bs": 0.27, "mcore": 0.32,
}  # fmt: skip
"""Mean error of Calculon as shipped on families that it can describe; 0.0365 on its own 8 rows."""


@dataclass(frozen=True, slots=True)
class HeldOutRun:
    """One run: seconds per step as measured, and as predicted by a fit without its group, with a 90 % interval."""

    family: str
    measured_s: float
    predicted_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Fits to everything, strata, and scores of held-out predictions by family; `collective_error` by setup.

    `points` are the runs of which `within` is the score, `choices` the groups of them in which there is one.
    """

    fits: Mapping[str, Fit]
    strata: Mapping[str, Stratum]
    points: Sequence[HeldOutRun]
    choices: Sequence[Choice]
    within: Mapping[str, Score]
    across: Mapping[str, Score]
    collective_error: Mapping[str, float]


def validate() -> Validation:
    """Fit to the shipped measurements, and predict each run by a fit that has not seen it."""
    measured = read_all_reduces(reference("collective_measurements.csv"))
    links = fit_collectives(measured)
    path = reference("training_measurements.csv")
    runs = read_runs(path, links.values)
    everything = np.ones(len(runs.rows), dtype=bool)
    fits = {
        "collective_measurements.csv": links,
        "training_measurements.csv, time": fit_time(runs, everything),
        "training_measurements.csv, memory": fit_memory(runs, everything),
    }
    start = fits["training_measurements.csv, time"].values
    folds = folds_of(runs)
    within = held_out(runs, [folds == fold for fold in range(FOLDS)], start)
    across = held_out(runs, [runs.family(name) for name in sorted(set(runs.families))], start)
    timed = runs.timed
    names = [stratum_of(row.candidates[0].job) for row in runs.rows]
    intervals = strata(
        [name for name, there in zip(names, timed, strict=True) if there],
        np.log(within.seconds[timed] / runs.seconds[timed]),
        [row.candidates[0].job for row, there in zip(runs.rows, timed, strict=True) if there],
    )
    rows = read_rows(path)
    error = np.abs(collectives.all_reduce(measured.nbytes, measured.group, links.values) / measured.seconds - 1)
    cells, apart = [row.cells for row in rows], predictions(rows, runs, within, links, intervals)
    return Validation(
        fits,
        intervals,
        list(_points(cells, apart)),
        choices(cells, apart),
        score(cells, apart),
        score(cells, predictions(rows, runs, across, links, intervals)),
        {
            setup: float(error[np.array([setup == other for other in measured.setups])].mean())
            for setup in sorted(set(measured.setups))
        },
    )


def _points(cells: Sequence[Mapping[str, str]], predicted: Sequence[Prediction]) -> Iterator[HeldOutRun]:
    for row, found in zip(cells, predicted, strict=True):
        measured_s = measured_seconds(row)
        if measured_s is not None and found.status == "ok":
            yield HeldOutRun(family_of(row["row_id"]), measured_s, found.seconds, found.low, found.high)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Seconds of every run as predicted by a fit without it; run i has the memory constants `memory[fit_of[i]]`."""

    seconds: Floats
    memory: tuple[Constants, ...]
    fit_of: tuple[int, ...]


def held_out(runs: Runs, masks: Sequence[Mask], start: Constants) -> HeldOut:
    """Predict the runs of each mask by fits to all others."""
    seconds = np.full(len(runs.rows), np.nan)
    memory: list[Constants] = [{}]
    fit_of = np.zeros(len(runs.rows), dtype=np.intp)
    for number, mask in enumerate(masks, 1):
        fitted = fit_time(runs, ~mask, start)
        seconds[mask] = runs.mixture.mean(runs.pricing.seconds(fitted.values))[mask]
        memory.append(fit_memory(runs, ~mask).values)
        fit_of[mask] = number
    return HeldOut(seconds, tuple(memory), tuple(fit_of.tolist()))


def predictions(
    rows: Sequence[Row], runs: Runs, held: HeldOut, links: Fit, intervals: Mapping[str, Stratum]
) -> list[Prediction]:
    """Held-out predictions in the order of the rows; intervals are those of the strata."""
    seconds = {row.number: value for row, value in zip(runs.rows, held.seconds, strict=True)}
    by_fit: dict[int, list[Row]] = {}
    for row, number in zip(runs.rows, held.fit_of, strict=True):
        by_fit.setdefault(number, []).append(row)
    found: dict[int, Prediction] = {}
    for number, mine in by_fit.items():
        constants = held.memory[number]
        fitted = FittedConstants(nominal(TIME) | dict(links.values) | dict(constants), intervals)
        for row, prediction in zip(mine, predict(mine, fitted), strict=True):
            value = float(seconds[row.number])
            scale = value / prediction.seconds
            found[row.number] = replace(
                prediction, seconds=value, low=prediction.low * scale, high=prediction.high * scale
            )
    return [found.get(row.number) or Prediction(row.cells["row_id"], f"unsupported: {row.why_not}") for row in rows]


def folds_of(runs: Runs) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """A fold per run: groups are kept whole and dealt out within each family.

    A group is a model on a GPU; in a family with fewer than three of those, it is also the number of GPUs.
    """
    cells = [row.cells for row in runs.rows]
    keys = [(family, row["model"], row["gpu"]) for family, row in zip(runs.families, cells, strict=True)]
    wide = {family: len({key for key in keys if key[0] == family}) for family in set(runs.families)}
    groups = [
        key if wide[key[0]] >= _FEWEST_GROUPS else (*key, row["num_gpus"]) for key, row in zip(keys, cells, strict=True)
    ]
    places: dict[tuple[str, ...], int] = {}
    for family in set(runs.families):
        mine = sorted({group for group in groups if group[0] == family})
        places |= {group: place % FOLDS for place, group in enumerate(mine)}
    return np.array([places[group] for group in groups], dtype=np.intp)
