"""Step causes: what the time of a plan's step goes to, as means over its ranks.

    compute                 some act computes what is computed for the first time
    recompute               acts that compute again, at their own prices
    exposed communication   some act communicates and none computes
    bubble                  the rest: a rank waits for others, or loads

The four are counted on the simulated timeline, but for recompute, which is added up from prices and taken off compute.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from simulator.simulate import Simulation
from strategy.plan.plan import Plan
from strategy.sbp.tensor import Rate


@dataclass(frozen=True, slots=True)
class StepCauses:
    """Seconds of a step by cause; they add up to it."""

    compute_s: float
    recompute_s: float
    exposed_communication_s: float
    bubble_s: float

    @property
    def step_s(self) -> float:
        """The whole."""
        return self.compute_s + self.recompute_s + self.exposed_communication_s + self.bubble_s


def step_causes(plan: Plan, found: Simulation) -> StepCauses:
    """What the step of a plan goes to, of its simulation."""
    again_s = min(_recompute_s(plan), found.compute_s)
    exposed_s = found.exposed_communication_s
    bubble_s = found.step_time_s - found.compute_s - exposed_s
    return StepCauses(found.compute_s - again_s, again_s, exposed_s, bubble_s)


def _recompute_s(plan: Plan) -> float:
    """Seconds of a step in which a rank computes again, a mean over stages."""
    graph, priced = plan.graph, plan.priced
    if not any(op.repeats for op in graph.ops):
        return 0.0
    count, total_s = plan.training.num_micro_batches, 0.0
    for action, features in zip(priced.arrangement.actions, priced.features, strict=True):
        if action.op and graph.by_name[action.op].repeats:
            total_s += plan.cost.seconds(features) * (count if action.rate is Rate.MICRO_BATCH else 1)
    return total_s / plan.config.pp


def difference(theirs: StepCauses, ours: StepCauses) -> str:
    """Where our step differs from theirs, in percent of theirs: the largest difference first."""
    before, after = asdict(theirs), asdict(ours)
    shares = {name: 100 * (after[name] - before[name]) / theirs.step_s for name in before}
    ordered = sorted(shares, key=lambda name: -abs(shares[name]))
    return ", ".join(f"{name[:-2].replace('_', ' ')} {shares[name]:+.1f} %" for name in ordered)
