"""Others: the plans next to a plan, each the best one with a setting changed, and what it loses by or lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.explanation.simulated import SimulatedPlan, simulated
from experiments.explanation.time_by_cause import differences_by_cause_s, grouped_s
from experiments.explanation.why_not import pinned_request
from experiments.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.layout.config import PlanConfig, Recompute
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
            yield OtherPlan(settings, other.causes.step_time_s, tuple(more.items()))


def _next_to(one: SimulatedPlan) -> Iterator[tuple[str, Pins]]:
    """Settings, as they are typed, and pins of configurations that differ from a plan's in one respect."""
    config = one.plan.config
    degrees = {name: getattr(config, name) for name in ("dp", "tp", "pp")}
    for source, target in SWAPS:
        changed = {**degrees, source: degrees[source] // 2, target: 2 * degrees[target]}
        if degrees[source] % 2 == 0 and config.cp == config.ep == 1:
            pins = Pins(**changed)
            if not leave_no_candidate(pinned_request(one.plan, pins)):
                yield " ".join(f"{name}={value}" for name, value in changed.items()), pins
    yield from _saving_otherwise(config, degrees)


def _saving_otherwise(config: PlanConfig, degrees: dict[str, int]) -> Iterator[tuple[str, Pins]]:
    """The same degrees, with something else computed again, or parameters held otherwise."""
    same = " ".join(f"{name}={value}" for name, value in degrees.items())
    recompute = Recompute.FULL if config.recompute is Recompute.NONE else Recompute.NONE
    yield f"{same} recompute={recompute}", Pins(**degrees, recompute=recompute)
    if config.dp > 1:
        stage = 0 if config.zero_stage else 3
        yield f"{same} zero_stage={stage}", Pins(**degrees, zero_stage=stage)
