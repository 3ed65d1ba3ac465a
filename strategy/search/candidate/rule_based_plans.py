"""Rule-based plans: candidates laid out by one rule per axis, as a person would.

They are solved quickly, for a rule leaves little to choose; they are the plans that a search is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.layout.config import Offload, PlanConfig
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import Solved, solve_candidate
from strategy.search.candidate.fitted_plan import fitted_plan
from strategy.search.candidate.infeasibility import nothing_fits, tightest
from strategy.search.candidate.simulated_plan import Simulate
from strategy.space.request import Request

FILLED = 0.7
"""Part of the memory that parameters may fill in a rule-based plan that is likely to fit."""


def plan_by_rule(request: Request, config: PlanConfig, rules: Sequence[str], simulate: Simulate) -> Plan:
    """The best plan of one candidate under named rules: how hand-written competitors are made.

    Raises:
        InfeasibleError: it does not fit the memory limit.
    """
    solved = solve_candidate(request, config, rules=rules)
    if solved is not None:
        try:
            return fitted_plan(request, solved, simulate, rules=rules)
        except InfeasibleError:
            pass
    nearest, complete = tightest(request, [config], rules=rules)
    if nearest is None or nearest.nbytes > request.memory_limit_bytes:
        raise nothing_fits(request, nearest, complete=complete)
    return fitted_plan(request, nearest.solved, simulate, rules=rules)


def solved_by_rule(request: Request, candidates: Sequence[PlanConfig], wanted: int, budget: Budget) -> list[Solved]:
    """The first `wanted` candidates that fit the way a person would lay them out; at most one per mesh.

    The end of the budget ends it early, with what was found.
    """
    found: dict[tuple[int, int, int, int], Solved] = {}
    for config in candidates:
        if len(found) >= wanted or budget.is_over():
            break
        shape = (config.pp, config.dp, config.ep, config.tp)
        if shape in found:
            continue
        try:
            solved = solve_candidate(request, config, rules=config.axes, budget=budget)
        except (InfeasibleError, OutOfTimeError):
            continue
        if solved is not None:
            found[shape] = solved
    return list(found.values())


def likely_first(request: Request, candidates: Sequence[PlanConfig]) -> list[PlanConfig]:
    """First what is likely to fit when laid out by a rule: tensor parallelism inside a node, few copies, no host."""
    inside = request.cost.cluster.devices_per_node
    return sorted(
        candidates,
        key=lambda c: (
            c.offload is not Offload.NONE,
            request.state_bytes
            > FILLED * request.memory_limit_bytes * c.tp * c.pp * (c.shards if c.zero_stage == 3 else 1),
            c.tp > inside,
            c.micro_batch,
            c.dp,
            -c.tp,
            c.num_micro_batches,
        ),
    )
