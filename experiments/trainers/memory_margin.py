"""Memory margin: plans that fit with a probability, by the errors of predicted memory on runs that fits had not seen.

A plan says to the byte what its program allocates; what another system holds for the same plan is a prediction. A
search without a trainer keeps its plans below the device's memory by the margin of systems of which no run was seen.
One for a trainer prices the trainer's file by the closed form, and searches again under less memory until what the file
needs, by the margin of that trainer's runs, fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError, present
from strategy.base.status import Status
from strategy.base.units import format_bytes
from strategy.closed_form.calibration import shipped
from strategy.closed_form.memory_error import MemoryErrors
from strategy.plan.plan import FitClaim, Plan, most_memory_bytes
from strategy.space.request import Request
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.priced import TrainerPrice
from strategy.trainers.trained import FRAMEWORKS, TrainerName

if TYPE_CHECKING:
    from strategy.search.search_result import SearchResult

FIRST_SHARE, NEXT_SHARE = 0.3, 0.7
"""Of the time that is left, for the first search for a trainer, which shows how much more than the plan's own count its
file needs, and for each search after it, under less memory than the one before."""
LEAST_PART = 0.5
"""A search gets at least this part of what the plan of the one before holds."""


def found_with(
    request: Request, probability: float | None, solve: Callable[[Request, Budget], SearchResult], budget: Budget
) -> SearchResult:
    """What the search finds that fits with a probability, if one is asked for; its plan claims that.

    Raises:
        InputError: devices differ, or the closed form does not price the trainer's file.
        InfeasibleError, OutOfTimeError: as the search; also where no plan was found whose file fits.
    """
    if probability is None:
        return solve(request, budget)
    cluster, trainer = request.cost.cluster, request.pins.trainer
    if cluster.groups:
        expected = "nodes of one type"
        raise InputError("memory is kept free on alike devices", where=cluster.name, expected=expected)
    if trainer is None:
        claim = FitClaim(probability)
        limit = most_memory_bytes(cluster, claim)
        return _claiming(solve(replace(request, memory_limit_bytes=limit), budget), claim)
    return _for_trainer(request, FitClaim(probability, trainer), solve, budget)


def _for_trainer(
    request: Request, claim: FitClaim, solve: Callable[[Request, Budget], SearchResult], budget: Budget
) -> SearchResult:
    trainer = present(claim.trainer, "the trainer")
    margin = _errors().margin(FRAMEWORKS[TrainerName(trainer)], claim.probability)
    limit, best = int(request.memory_limit_bytes / margin), 0.0
    first = part = budget.share(FIRST_SHARE)
    while True:
        within = replace(request, memory_limit_bytes=limit)
        try:
            result = solve(within, part)
        except (InfeasibleError, OutOfTimeError) as error:
            if isinstance(error, OutOfTimeError) and part is not budget and not budget.is_over():
                part = budget  # nothing was found in its part: it has all that is left
                continue
            if best:
                raise _not_found(claim, best, limit) from error
            raise
        price = trainer_price(result.plan, trainer)
        missing = missing_bytes(price, claim.probability)
        if missing <= 0:
            return _claiming(_with_the_rest(within, claim, result, solve, budget) if part is first else result, claim)
        best = max(best, price.fit_probability or 0.0)
        if result.interrupted or budget.is_over():
            raise _not_found(claim, best, limit)
        held = min(limit, max(result.plan.claims.peak_memory_bytes))
        limit, part = max(held - missing, int(LEAST_PART * held)), budget.share(NEXT_SHARE)


def _with_the_rest(
    request: Request,
    claim: FitClaim,
    found: SearchResult,
    solve: Callable[[Request, Budget], SearchResult],
    budget: Budget,
) -> SearchResult:
    """What a search with all the time that is left finds, where the first one was short of it and found no better."""
    if found.status is not Status.LIMIT or found.interrupted or budget.is_over():
        return found
    try:
        other = solve(request, budget)
    except (InfeasibleError, OutOfTimeError):
        return found
    fits = missing_bytes(trainer_price(other.plan, present(claim.trainer, "the trainer")), claim.probability) <= 0
    return other if fits and other.plan.claims.step_time_s <= found.plan.claims.step_time_s else found


def _not_found(claim: FitClaim, best: float, limit: int) -> OutOfTimeError:
    return OutOfTimeError(
        f"no plan was found whose {claim.trainer} file fits with probability {claim.probability:g}: the best of those "
        f"found fits with {best:.2f}, and under {format_bytes(limit)} per device, by the plan's own count, none was "
        "found in time; ask for less with --fit-probability, give more GPUs, or raise --time-limit"
    )


def trainer_price(plan: Plan, trainer: TargetTrainer) -> TrainerPrice:
    """What the file that `export` would write takes and holds.

    Raises:
        InputError: the closed form prices no such model or cluster.
    """
    from experiments.trainers.trainer_prices import machine_of_cluster
    from strategy.trainers.priced import priced
    from strategy.trainers.write import read_back, write_configuration

    name = TrainerName(trainer)
    back = read_back(write_configuration(plan, name, f"plan.{trainer}").files, name)
    return priced(back.trained, machine_of_cluster(plan.cluster), shipped())


def missing_bytes(price: TrainerPrice, probability: float) -> int:
    """Bytes per GPU that a priced file lacks to fit with a probability; none, or less than none, where it does."""
    margin = _errors().margin(price.job.framework, probability)
    return math.ceil(price.needed_memory_bytes * margin) - price.limit_bytes


def fit_problems(plan: Plan) -> list[str]:
    """Whether the file of a plan for a trainer fits as the plan claims; of other plans `strategy.plan.verify` says."""
    claim = plan.claims.fit
    if claim is None or claim.trainer is None:
        return []
    price = trainer_price(plan, claim.trainer)
    if missing_bytes(price, claim.probability) <= 0:
        return []
    needed, there = format_bytes(price.needed_memory_bytes), format_bytes(price.limit_bytes)
    found = f"{needed} of {there} are needed, which suffice with probability {price.fit_probability:.2f}"
    return [f"fit: {claim.trainer}'s file is claimed to fit with probability {claim.probability:g}, but {found}"]


def _errors() -> MemoryErrors:
    return present(shipped().memory, "errors of memory")


def _claiming(result: SearchResult, claim: FitClaim) -> SearchResult:
    return replace(result, plan=result.plan.claiming(replace(result.plan.claims, fit=claim)))
