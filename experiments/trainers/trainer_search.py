"""Search for a trainer: the best plan that its configuration can say, and what that limit costs.

The search over the trainer's space comes first and has most of the time; what is left is for the search without the
limit, whose plan and bound say what the limit costs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from experiments.planning.prices import simulated_step
from experiments.trainers.trainer_prices import fits_text
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.base.units import format_bytes, format_seconds
from strategy.exports.trainer_file import file_price, trainer_file
from strategy.plan.plan import Plan
from strategy.search.search import search
from strategy.search.search_result import SearchResult
from strategy.space.request import Pins, Request
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.priced import TrainerPrice
from strategy.trainers.trained import TrainerName

LIMITED_SHARE, LEAST_LIMITED_S = 0.65, 45.0
"""Of the time, for the search within the trainer's limits; and seconds at least, if there are so many."""


@dataclass(frozen=True, slots=True)
class TrainerAnswer:
    """What is known of a plan that is for a trainer.

    Attributes:
        trainer: whose limits it keeps.
        cannot_say: what of it the trainer's file does not say, which is nothing unless something is missing here.
        price: of the file, read back, by the closed form with the trainer's own constants; None where the closed form
            prices no such cluster.
        free: what the search without the limits found; None where it found nothing in time.
        without: of the model's loss, what the trainer does not train with.
    """

    trainer: TargetTrainer
    cannot_say: tuple[str, ...]
    price: TrainerPrice | None
    free: SearchResult | None
    without: tuple[str, ...] = ()


def limited_budget(budget: Budget) -> Budget:
    """What of the time the search within the limits has."""
    return budget.at_most(max(LIMITED_SHARE * budget.left_s(), LEAST_LIMITED_S))


def answer_for(request: Request, result: SearchResult, budget: Budget, without: tuple[str, ...]) -> TrainerAnswer:
    """What the limits cost, and what the trainer's file says; `request` is within the limits, the budget for the rest.

    Raises:
        InputError: no trainer is pinned.
    """
    trainer = request.pins.trainer
    if trainer is None:
        raise InputError("no trainer", where="pins")
    name, found = TrainerName(trainer), result.plan
    written = trainer_file(found, name, f"plan.{trainer}")
    try:
        price = file_price(found, name)
    except InputError:
        price = None
    # The space without the limits is larger: there is nothing to be had in less time than the limited search took.
    free = _free(request, budget) if budget.left_s() >= result.search_time_s else None
    return TrainerAnswer(trainer, written.cannot_say, price, free, without)


def _free(request: Request, budget: Budget) -> SearchResult | None:
    """What is found without the trainer's limits; other pins stay."""
    try:
        return search(replace(request, pins=_without(request.pins)), simulate=simulated_step, budget=budget)
    except (InfeasibleError, OutOfTimeError, KeyboardInterrupt):
        return None


def _without(pins: Pins) -> Pins:
    return replace(pins, trainer=None, fit_probability=None)


@dataclass(frozen=True, slots=True)
class LimitsCost:
    """What a trainer's limits add to a step, as parts of the free search's: objectives, which is what bounds speak of.

    `seen` is between the two plans; `least` is sure, by the bound within the limits; `most` by the free search's bound.
    """

    seen: float
    least: float
    most: float


def limits_cost(found: Plan, free: Plan) -> LimitsCost:
    """What the limits of a plan cost; nothing where the free search found nothing faster."""
    own, other = found.claims, free.claims
    seen, least = own.objective_s / other.objective_s, own.lower_bound_s / other.objective_s
    most = own.objective_s / other.lower_bound_s
    return LimitsCost(*(max(0.0, part - 1) for part in (seen, least, most)))


def trainer_document(found: Plan, answer: TrainerAnswer) -> dict[str, Any]:
    """What JSON has of it."""
    from strategy.plan.plan import config_document

    free, price = answer.free, answer.price
    cost = None if free is None else limits_cost(found, free.plan)
    return {
        "name": str(answer.trainer),
        "cannot_say": list(answer.cannot_say),
        "without": list(answer.without),
        "limits_cost": None if cost is None else dataclasses.asdict(cost),
        "free": None if free is None else {
            "config": config_document(free.plan.config),
            "step_time_s": free.plan.claims.step_time_s,
            "objective_s": free.plan.claims.objective_s,
            "lower_bound_s": free.plan.claims.lower_bound_s,
        },
        "price": None if price is None else {
            "step_time_s": price.step_time_s,
            "lo_s": price.lo_s,
            "hi_s": price.hi_s,
            "peak_memory_bytes": price.peak_memory_bytes,
            "memory_limit_bytes": price.limit_bytes,
            "fits": price.fits,
            "fit_probability": price.fit_probability,
        },
    }  # fmt: skip


def trainer_text(found: Plan, answer: TrainerAnswer) -> str:
    """The same for people."""
    lines = [_cost_text(found, answer)]
    if answer.price is not None:
        one = answer.price
        step, lo, hi = (format_seconds(value) for value in (one.step_time_s, one.lo_s, one.hi_s))
        fits = fits_text(one)
        held = f"{format_bytes(one.peak_memory_bytes)} of {format_bytes(one.limit_bytes)}"
        lines.append(f"as {answer.trainer} runs it, by the closed form: {step} ({lo} to {hi}), {held}, {fits}")
    lines += [f"trained without {line}" for line in answer.without]
    lines += [f"not said by its file: {line}" for line in answer.cannot_say]
    return "\n".join(lines)


def _cost_text(found: Plan, answer: TrainerAnswer) -> str:
    if answer.free is None:
        return f"what {answer.trainer}'s limits cost is not known: no plan without them was found in time"
    cost, free_s = limits_cost(found, answer.free.plan), answer.free.plan.claims.objective_s
    if not cost.seen:
        return f"without {answer.trainer}'s limits nothing faster was found; they cost at most {cost.most:.1%}"
    unsure = "" if cost.least else ", or less: the search within them was not over"
    seen = f"{answer.trainer}'s limits cost {cost.seen:.1%} (without them {format_seconds(free_s)}){unsure}"
    return f"{seen}; at most {cost.most:.1%}, by the bound"
