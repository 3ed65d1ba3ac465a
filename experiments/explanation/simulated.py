"""A plan with its program and its simulated step: what explanations and reports are drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.explanation.time_by_cause import TimeByCause, time_by_cause
from simulator.simulate import Simulation, simulate
from strategy.plan.plan import Plan, read_plan
from strategy.plan.verify import Admitted, admitted
from strategy.program.program import Program


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """A plan that was verified, its program, its simulated step, and what that consists of."""

    plan: Plan
    program: Program
    found: Simulation
    causes: TimeByCause


def read_simulated(path: Path) -> SimulatedPlan:
    """Read, verify and simulate a plan.

    Raises:
        InputError: the file is missing, or no plan.
        PlanError: the plan is not what it claims.
    """
    from strategy.plan.verify import refusal

    plan = read_plan(path)
    accepted = admitted(plan, partial(simulate, peak_flop_per_s=plan.peak_flop_per_s))
    if not isinstance(accepted, Admitted):
        raise refusal(path, accepted)
    return SimulatedPlan(plan, accepted.program, accepted.result, time_by_cause(plan.priced, accepted.result))


def simulated(plan: Plan) -> SimulatedPlan:
    """A plan that was just made: it is simulated, and not verified again."""
    from experiments.planning.prices import program_of

    program = program_of(plan, plan.cost)
    found = simulate(program, peak_flop_per_s=plan.peak_flop_per_s)
    return SimulatedPlan(plan, program, found, time_by_cause(plan.priced, found))
