"""Validation: how well runs are predicted that the fit has not seen, per family of published measurements.

Two ways to hold runs out: whole groups within every family, in five folds; and whole sources, which then are predicted
from data sheets and from what others ran. A group is a model on a GPU in the first set of sources; in the second it is
a model and its cut on all GPUs, with all versions and repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.published.fitting import (
    COLLECTIVES,
    TRAINING,
    Mask,
    Runs,
    fit_collectives,
    fit_memory,
    fit_time,
    measured_rows,
    read_all_reduces,
    read_runs,
    reference,
)  # fmt: skip
from experiments.published.guesses import guess_costs
from experiments.published.predictions import Prediction, predict
from experiments.published.priced_configurations import PricedRun, priced_configurations, priced_rows, read_shipped
from experiments.published.rows import Row
from experiments.published.scores import (
    Choice,
    Score,
    choices,
    family_of,
    measured_memory,
    measured_seconds,
    of_second_set,
    score,
)
from strategy.closed_form import collectives, memory
from strategy.closed_form.calibration import TIME, FittedConstants
from strategy.closed_form.constants import Constants, nominal, without_source
from strategy.closed_form.fit import Fit
from strategy.closed_form.interval import Residual, Stratum, strata
from strategy.closed_form.memory_error import MemoryErrors, memory_errors
from strategy.closed_form.products import Floats

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
    """Fits to everything, strata, errors of memory, and scores of held-out predictions by family.

    `collective_error` is by setup; `untold` are scores by source of the families whose source alone tells some
    constants, priced with what other systems say of these; `second` are the families of the second set of sources;
    `points` are the runs of which `within` is the score, `choices` the groups of them in which there is one; `priced`
    are prices by rows, and of published configurations whose runs these are.
    """

    fits: Mapping[str, Fit]
    strata: Mapping[str, Stratum]
    memory: MemoryErrors
    guesses: Mapping[str, float]
    points: Sequence[HeldOutRun]
    choices: Sequence[Choice]
    priced: Sequence[PricedRun]
    within: Mapping[str, Score]
    across: Mapping[str, Score]
    untold: Mapping[str, Score]
    second: frozenset[str]
    collective_error: Mapping[str, float]


def validate() -> Validation:
    """Fit to the shipped measurements, and predict each run by a fit that has not seen it."""
    measured = read_all_reduces(reference(COLLECTIVES))
    links = fit_collectives(measured)
    rows = measured_rows()
    runs = read_runs(rows, links.values)
    everything = np.ones(len(runs.rows), dtype=bool)
    time = fit_time(runs, everything)
    trained = ", ".join(TRAINING)
    fits = {COLLECTIVES: links, f"{trained}, time": time, f"{trained}, memory": fit_memory(runs, everything)}
    folds, sources = folds_of(runs), np.array([source_of(family) for family in runs.families])
    within = held_out(runs, [folds == fold for fold in range(FOLDS)], time.values)
    across = held_out(runs, [sources == name for name in sorted(set(sources.tolist()))], time.values)
    alone = sorted({constant.told_by for constant in TIME} - {""})
    others = {name: fit_time(runs, sources != name, time.values, without_source(TIME, name)) for name in alone}
    untold = across.but_for(runs, others, sources)
    residuals = Residuals.of(runs, within, across, sources.tolist())
    error = np.abs(collectives.all_reduce(measured.nbytes, measured.group, links.values) / measured.seconds - 1)
    cells, apart = [row.cells for row in rows], predictions(rows, runs, within, links, residuals)
    afar = predictions(rows, runs, across, links, residuals)
    intervals = strata(residuals.without(np.zeros(len(runs.rows), dtype=bool)))
    known = FittedConstants(nominal(memory.CONSTANTS) | dict(links.values) | dict(time.values), intervals)
    return Validation(
        fits,
        intervals,
        memory_errors(list(_memory_residuals(rows, apart, afar))),
        guess_costs(runs.rows, sources.tolist(), known),
        list(_points(cells, apart)),
        choices(cells, apart),
        [*priced_rows(rows, apart), *_priced_files(runs, within, links, residuals)],
        score(cells, apart),
        score(cells, afar),
        {
            name: item
            for name, item in score(cells, predictions(rows, runs, untold, links, residuals)).items()
            if source_of(name) in alone
        },
        frozenset(family_of(row) for row in cells if of_second_set(row)),
        {
            setup: float(error[np.array([setup == other for other in measured.setups])].mean())
            for setup in sorted(set(measured.setups))
        },
    )


def _points(cells: Sequence[Mapping[str, str]], predicted: Sequence[Prediction]) -> Iterator[HeldOutRun]:
    for row, found in zip(cells, predicted, strict=True):
        measured_s = measured_seconds(row)
        if measured_s is not None and found.status == "ok":
            yield HeldOutRun(family_of(row), measured_s, found.seconds, found.low, found.high)


def _priced_files(runs: Runs, held: HeldOut, links: Fit, residuals: Residuals) -> Iterator[PricedRun]:
    known = constants_without(held, links, residuals)
    return priced_configurations(runs.rows, [known[number] for number in held.fit_of], read_shipped())


def _memory_residuals(
    rows: Sequence[Row], apart: Sequence[Prediction], afar: Sequence[Prediction]
) -> Iterator[Residual]:
    """Log ratios of predicted to measured memory, of every run that did not exceed it and reports it."""
    for row, near, far in zip(rows, apart, afar, strict=True):
        found = measured_memory(row.cells)
        if found is None or row.cells["oom"] == "yes" or near.status != "ok" or far.status != "ok":
            continue
        column, held = found
        ratios = (math.log(one.memory(column) / held) for one in (near, far))
        family = family_of(row.cells)
        yield Residual(row.candidates[0].job, source_of(family), _group(family, row.cells), *ratios)


@dataclass(frozen=True, slots=True)
class Residuals:
    """Log ratios of predicted to measured seconds of every run, by fits without it; nan where no time was measured."""

    of_runs: tuple[Residual, ...]

    @classmethod
    def of(cls, runs: Runs, within: HeldOut, across: HeldOut, sources: Sequence[str]) -> Residuals:
        """The residuals of two ways to hold runs out."""
        near, far = (np.log(held.seconds / runs.seconds) for held in (within, across))
        jobs = [row.candidates[0].job for row in runs.rows]
        groups = [_group(family, row.cells) for family, row in zip(runs.families, runs.rows, strict=True)]
        return cls(tuple(map(Residual, jobs, sources, groups, near.tolist(), far.tolist())))

    def without(self, mask: Mask) -> list[Residual]:
        """Those of the timed runs that a mask does not hold, and of which nothing had to be guessed."""
        return [
            one
            for one, held in zip(self.of_runs, mask.tolist(), strict=True)
            if not held and np.isfinite(one.far) and not one.job.guessed
        ]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Seconds of every run as predicted by a fit without it; run i has the constants number `fit_of[i]`."""

    seconds: Floats
    memory: tuple[Constants, ...]
    fit_of: tuple[int, ...]
    time: tuple[Constants, ...]

    def but_for(
        self, runs: Runs, fits: Mapping[str, Fit], sources: np.ndarray[tuple[int], np.dtype[np.str_]]
    ) -> HeldOut:
        """The same but for the seconds of some sources, which are priced by fits of their own."""
        seconds = self.seconds.copy()
        for name, fitted in fits.items():
            mine = sources == name
            seconds[mine] = runs.priced(fitted.values)[mine]
        return replace(self, seconds=seconds)


def held_out(runs: Runs, masks: Sequence[Mask], start: Constants) -> HeldOut:
    """Predict the runs of each mask by fits to all others."""
    seconds = np.full(len(runs.rows), np.nan)
    memory: list[Constants] = [{}]
    time: list[Constants] = [{}]
    fit_of = np.zeros(len(runs.rows), dtype=np.intp)
    for number, mask in enumerate(masks, 1):
        fitted = fit_time(runs, ~mask, start)
        seconds[mask] = runs.priced(fitted.values)[mask]
        memory.append(fit_memory(runs, ~mask).values)
        time.append(fitted.values)
        fit_of[mask] = number
    return HeldOut(seconds, tuple(memory), tuple(fit_of.tolist()), tuple(time))


def constants_without(held: HeldOut, links: Fit, residuals: Residuals) -> dict[int, FittedConstants]:
    """Number of a fit -> all that it says of the runs that it has not seen; intervals rest on those beside them."""
    return {
        number: FittedConstants(
            dict(links.values) | dict(held.time[number]) | dict(held.memory[number]),
            strata(residuals.without(np.array(held.fit_of) == number)),
        )
        for number in sorted(set(held.fit_of))
    }


def predictions(rows: Sequence[Row], runs: Runs, held: HeldOut, links: Fit, residuals: Residuals) -> list[Prediction]:
    """Held-out predictions in the order of the rows; intervals rest on the residuals of the runs beside them."""
    seconds = {row.cells["row_id"]: value for row, value in zip(runs.rows, held.seconds, strict=True)}
    by_fit: dict[int, list[Row]] = {}
    for row, number in zip(runs.rows, held.fit_of, strict=True):
        by_fit.setdefault(number, []).append(row)
    found: dict[str, Prediction] = {}
    for number, mine in by_fit.items():
        constants = held.memory[number]
        intervals = strata(residuals.without(np.array(held.fit_of) == number))
        fitted = FittedConstants(nominal(TIME) | dict(links.values) | dict(constants), intervals)
        work = runs.priced.pricing.work.of(np.array(held.fit_of)[runs.priced.mixture.owner] == number)
        for row, prediction in zip(mine, predict(mine, fitted, work), strict=True):
            value = float(seconds[row.cells["row_id"]])
            scale = value / prediction.seconds
            found[row.cells["row_id"]] = replace(
                prediction, seconds=value, low=prediction.low * scale, high=prediction.high * scale
            )
    return [
        found.get(row.cells["row_id"]) or Prediction(row.cells["row_id"], f"unsupported: {row.why_not}") for row in rows
    ]


_MANY_KINDS = ("golden", "mlperf", "simumax")
"""Sources whose families are kinds of model: the rounds of MLPerf are one source, and so are the functional tests."""
_CUT = ("dp", "tp", "pp", "vpp", "cp", "ep")


def source_of(family: str) -> str:
    """Who measured a family."""
    return next((name for name in _MANY_KINDS if family.startswith(name)), family)


def folds_of(runs: Runs) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """A fold per run: groups are kept whole and dealt out within each family.

    Of the first set, in a family with fewer than three groups, a group is also the number of GPUs.
    """
    keys = [_group(family, row.cells) for family, row in zip(runs.families, runs.rows, strict=True)]
    wide = {family: len({key for key in keys if key[0] == family}) for family in set(runs.families)}
    groups = [
        key if wide[key[0]] >= _FEWEST_GROUPS else (*key, row.cells["num_gpus"])
        for key, row in zip(keys, runs.rows, strict=True)
    ]
    places: dict[tuple[str, ...], int] = {}
    # A timed run of which something has to be guessed teaches nobody; the others' folds do not depend on its group.
    taught = {group for group, timed in zip(groups, runs.timed.tolist(), strict=True) if timed}
    idle = {group for group, seconds in zip(groups, runs.seconds, strict=True) if np.isfinite(seconds)} - taught
    for family in set(runs.families):
        mine = sorted({group for group in groups if group[0] == family}, key=lambda one: (one in idle, one))
        places |= {group: place % FOLDS for place, group in enumerate(mine)}
    return np.array([places[group] for group in groups], dtype=np.intp)


def _group(family: str, cells: Mapping[str, str]) -> tuple[str, ...]:
    if of_second_set(cells):
        return (family, cells["model"], *(cells[name] for name in _CUT))
    return (family, cells["model"], cells["gpu"])
