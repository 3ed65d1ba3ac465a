"""Refinement: a calibration corrected by runs, act by act and then as a whole.

Acts are timed one by one, but ranks also wait for one another whenever something takes a core from one of them; the
simulator's ranks are alike and never do. What the runs' steps took over what the corrected acts add up to is therefore
a property of the machine, one factor, by which all constants are scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from experiments.planning.prices import simulated_step
from strategy.cost.calibrate import Calibration, refine, scale
from strategy.cost.measurement import Measurement
from strategy.hardware.cluster import Cluster
from strategy.lowering.lower import lower
from strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Observation:
    """What one run says: the cost of its acts, the pause between them, and the time of its steps."""

    plan: Plan
    rows: Sequence[Measurement]
    act_overhead_s: float
    step_time_s: float


def refine_by(base: Calibration, observations: Sequence[Observation], cluster: Cluster) -> Calibration:
    """The base calibration, corrected by the observations."""
    rows = [row for found in observations for row in found.rows]
    overhead_s = median(found.act_overhead_s for found in observations)
    acts = refine(base, rows, cluster, act_overhead_s=overhead_s)
    return scale(acts, median(found.step_time_s / predict_s(found.plan, acts) for found in observations))


def predict_s(plan: Plan, calibration: Calibration) -> float:
    """The simulated step of a plan under a calibration."""
    cost = calibration.cost_model(plan.cluster)
    return simulated_step(lower(plan.graph, plan.layout, plan.pipeline, cost)).step_time_s
