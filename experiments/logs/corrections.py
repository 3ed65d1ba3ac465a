"""Corrections: the cost model of a cluster on which others trained, by the steps and collectives that they logged.

A step says how long everything took together, not what. So the constants of the data sheet, or of a calibration, are
corrected by one factor for all kinds of acts that were not measured by themselves: the one by which the simulated steps
of the logged plans come out as they were measured, in the median.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from experiments.logs.trainer_log import TrainerLog
from experiments.planning.prices import program_of
from simulator.simulate import simulate
from strategy.base.identity import Identity
from strategy.cost.calibrate import Calibration, calibrate, refine, scale
from strategy.cost.cost import CostModel
from strategy.cost.measurement import LEAST_SAMPLES, CostKey, Features, Measurement
from strategy.hardware.cluster import Cluster
from strategy.plan.observe import features_by_action
from strategy.plan.plan import Plan

ROUNDS_OF_SCALING = 4
NEAR_ENOUGH = 5e-3
"""Of the median step; communication that computation hides makes steps other than linear in the factor."""
SHEET = "data sheet"


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """A plan, and the log of a trainer that trained in the same way."""

    plan: Plan
    log: TrainerLog


@dataclass(frozen=True, slots=True)
class LogError:
    """A logged run: its step, and predicted over measured less one; `held_out` by a correction without this log."""

    log: str
    trainer: str
    measured_step_time_s: float
    error_before: float
    error_after: float
    error_held_out: float | None


def of_data_sheet(plans: Sequence[Plan]) -> Calibration:
    """What the data sheet says of the acts of some plans, in the form of a calibration."""
    cluster = plans[0].cluster
    sheet = CostModel(cluster, {})
    acts = {part for plan in plans for found in features_by_action(plan).values() for part in _parts(found)}
    rows = [Measurement(one, sheet.seconds(one), LEAST_SAMPLES, SHEET) for one in acts if sheet.seconds(one) > 0]
    return calibrate(sorted(rows, key=repr), cluster)


def _parts(features: Features) -> Iterator[Features]:
    if features.parts:
        for part in features.parts:
            yield from _parts(part)
    else:
        yield features


def predict_s(plan: Plan, calibration: Calibration) -> float:
    """The simulated step of a plan under a calibration; ranks that do the same are simulated once."""
    return simulate(program_of(plan, calibration.cost_model(plan.cluster))).step_time_s


def corrected(
    base: Calibration, runs: Sequence[LoggedRun], collectives: Sequence[Measurement], cluster: Cluster
) -> Calibration:
    """The base with the collectives that were measured, and all else scaled to the steps of the runs."""
    found = refine(base, collectives, cluster, act_overhead_s=base.act_overhead_s) if collectives else base
    measured = {row.features.key for row in collectives}
    for _ in range(ROUNDS_OF_SCALING if runs else 0):
        # Logs of one job have one plan, whose step is simulated once.
        plans = {Identity(one.plan): one.plan for one in runs}
        predicted_s = {key: predict_s(plan, found) for key, plan in plans.items()}
        ratio = median(one.log.step_time_s / predicted_s[Identity(one.plan)] for one in runs)
        if abs(math.log(ratio)) < NEAR_ENOUGH:
            break
        found = _scaled_but(found, measured, ratio)
    return found


def _scaled_but(calibration: Calibration, measured: Collection[CostKey], factor: float) -> Calibration:
    scaled = scale(calibration, factor)
    kept = {key: calibration.fitted[key] for key in measured if key in calibration.fitted}
    return replace(scaled, fitted={**scaled.fitted, **kept})


def errors_of(
    base: Calibration, after: Calibration, runs: Sequence[LoggedRun], collectives: Sequence[Measurement]
) -> list[LogError]:
    """Of every run; held out, where there are others."""
    found, cluster = [], runs[0].plan.cluster
    for one in runs:
        others = [other for other in runs if other is not one]
        unseen = predict_s(one.plan, corrected(base, others, collectives, cluster)) if others else None
        measured_s = one.log.step_time_s
        before, now = (predict_s(one.plan, calibration) / measured_s - 1 for calibration in (base, after))
        held_out = None if unseen is None else unseen / measured_s - 1
        found.append(LogError(str(one.log.path), one.log.trainer, measured_s, before, now, held_out))
    return found
