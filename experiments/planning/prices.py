"""Prices: the cost model that a verb works with, and the simulated time of a program under it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.console import say

if TYPE_CHECKING:
    from simulator.simulate import Simulation
    from strategy.cost.calibrate import Calibration
    from strategy.cost.cost import CostModel
    from strategy.hardware.cluster import Cluster
    from strategy.plan.plan import Plan
    from strategy.program.program import Program
    from strategy.search.candidate.simulated_plan import SimulatedStep


def read_calibration_of(cluster: Cluster, path: Path) -> Calibration:
    """A calibration file; says so if it is of another cluster.

    Raises:
        InputError: the file is missing, truncated, or no calibration.
    """
    from strategy.cost.calibrate import read_calibration

    calibration = read_calibration(path)
    if calibration.cluster != cluster.name:
        say(f"warning: {path} was fitted on cluster {calibration.cluster!r}, not on {cluster.name!r}")
    return calibration


def extrapolated(plan: Plan, calibration: Calibration | None) -> list[str]:
    """What no measurement stands behind; sorted.

    With a calibration: kinds of acts that were not measured, or not at such sizes. Without: what no published run was
    on.
    """
    if calibration is None:
        from strategy.cost.data_sheet import unpublished

        return sorted(unpublished(plan.cluster))
    from strategy.plan.observe import features_by_action

    features = features_by_action(plan).values()
    return sorted({str(found.key) for found in features if calibration.extrapolates(found)})


def simulated_step(program: Program) -> SimulatedStep:
    """The simulated time of a step, and what bounds it from below: the work of the busiest stream or port.

    A stream does its acts of a step one after another, and a port moves its bytes at its rate, whichever streams they
    are of: no steady period is shorter. The bound is cut at the time found: of two steps, the second may have begun
    before the first one's end.
    """
    return KeptSimulations()(program)


@dataclass(slots=True)
class KeptSimulations:
    """`simulated_step` that keeps what it found, by its time: a search tells of its plan no more than that."""

    by_time_s: dict[float, Simulation] = field(default_factory=dict)

    def __call__(self, program: Program) -> SimulatedStep:
        """Simulate a program."""
        from simulator.simulate import simulate
        from strategy.search.candidate.simulated_plan import SimulatedStep

        found = simulate(program)
        self.by_time_s[found.step_time_s] = found
        return SimulatedStep(found.step_time_s, min(found.busiest_s, found.step_time_s))

    def of(self, plan: Plan) -> Simulation:
        """A plan's simulation; where another process had it, once more."""
        if plan.claims.step_time_s not in self.by_time_s:
            self(program_of(plan, plan.cost))
        return self.by_time_s[plan.claims.step_time_s]


def program_of(plan: Plan, cost: CostModel, *, folds: bool = True) -> Program:
    """The plan's program, priced by its own constants or by others; `folds`, where ranks may stand for others.

    Raises:
        PlanError: too many ranks stand for themselves.
    """
    from strategy.lowering.lower import lower_priced

    priced = plan.priced if cost == plan.cost else replace(plan.priced, cost=cost)
    return lower_priced(priced, tokens_per_step=plan.tokens_per_step, folds=folds)
