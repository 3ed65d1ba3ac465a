"""Others: the plans next to a plan, each the best one with a setting changed, and what it loses by or lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from experiments.explanation.simulated import SimulatedPlan, simulated
from experiments.explanation.time_by_cause import differences_by_cause_s, grouped_s
from experiments.explanation.why_not import pinned_request
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.layout.config import Recompute
from strategy.plan.plan import Plan
from strategy.search.contradiction import leave_no_candidate
from strategy.search.search import search
from strategy.space.request import Pins

SWAPS = (("dp", "tp"), ("tp", "dp"), ("dp", "pp"), ("pp", "dp"), ("tp", "pp"), ("pp", "tp"))
"""Half of one degree goes to another."""


@dataclass(frozen=True, slots=True)
class OtherPlan:
    """The best plan with some settings: its step and what it takes more by group of causes, or why there is none."""

    settings: str
    step_time_s: float | None = None
    added_by_group_s: tuple[tuple[str, float], ...] = ()
    reason: str = ""
    plan: Plan | None = None

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return {name: getattr(self, name) for name in ("settings", "step_time_s", "added_by_group_s", "reason")}


def other_plans(one: SimulatedPlan, most: int, budget: Budget) -> Iterator[OtherPlan]:
    """The plans next to a plan, `most` at most, each searched for in an even part of the time."""
    pins = list(_next_to(one))[:most]
    for index, (settings, pinned) in enumerate(pins):
        request = pinned_request(one.plan, pinned)
        try:
            mine = budget.share(1 / (len(pins) - index))
            other = simulated(search(request, simulate=simulated_step, budget=mine).plan)
        except OutOfTimeError:
            yield OtherPlan(settings, reason="no plan was found in time")
        except InfeasibleError as error:
            limit = error.smallest_limit
            lacks = "no layout fits the memory" if limit is None else f"needs {limit / 2**30:.2f} GiB per device"
            yield OtherPlan(settings, reason=f"does not fit: {lacks}")
        else:
            more = grouped_s(differences_by_cause_s(one.causes, other.causes))
            yield OtherPlan(settings, other.causes.step_time_s, tuple(more.items()), plan=other.plan)


def _next_to(one: SimulatedPlan) -> Iterator[tuple[str, Pins]]:
    """Settings, as they are typed, and pins of configurations that differ from a plan's in one respect."""
    config = one.plan.config
    same = Pins(dp=config.dp, tp=config.tp, pp=config.pp)
    for source, target in SWAPS if config.cp == config.ep == 1 else ():
        half, rest = divmod(getattr(config, source), 2)
        pins = replace(same, **{source: half, target: 2 * getattr(config, target)})
        if not rest and not leave_no_candidate(pinned_request(one.plan, pins)):
            yield _degrees(pins), pins
    recompute = Recompute.FULL if config.recompute is Recompute.NONE else Recompute.NONE
    yield f"{_degrees(same)} recompute={recompute}", replace(same, recompute=recompute)
    if config.dp > 1:
        stage = 0 if config.zero_stage else 3
        yield f"{_degrees(same)} zero_stage={stage}", replace(same, zero_stage=stage)


def _degrees(pins: Pins) -> str:
    return f"dp={pins.dp} tp={pins.tp} pp={pins.pp}"
