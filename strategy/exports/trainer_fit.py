"""Trainer fit: whether a trainer's file of a plan fits the devices' memory with the probability that is asked for."""

from __future__ import annotations

from dataclasses import replace

from strategy.base.errors import InfeasibleError, InputError
from strategy.base.units import format_bytes
from strategy.exports.trainer_file import file_price
from strategy.plan.plan import FitClaim, Plan
from strategy.space.request import Pins
from strategy.space.trainer_memory import missing_bytes
from strategy.trainers.trained import TrainerName


def claiming_fit(plan: Plan, pins: Pins) -> Plan:
    """The plan with what was asked for of its memory as a claim; that it holds for the trainer's file is checked.

    Raises:
        InputError: a probability is asked for, and the closed form prices no such file.
        InfeasibleError: the trainer's file does not fit.
    """
    probability, trainer = pins.fit_probability, pins.trainer
    if trainer is not None:
        try:
            price = file_price(plan, TrainerName(trainer))
        except InputError:
            if probability is not None:
                raise
            return plan
        if missing_bytes(price, plan.claims.memory_limit_bytes, probability) > 0:
            needed, there = format_bytes(price.needed_memory_bytes), format_bytes(price.limit_bytes)
            raise InfeasibleError(f"{trainer} does not hold the plan: its file needs {needed} of {there}")
    if probability is None:
        return plan
    return plan.claiming(replace(plan.claims, fit=FitClaim(probability, trainer)))


def fit_problems(plan: Plan) -> list[str]:
    """Whether the file of a plan for a trainer fits as the plan claims; of other plans `strategy.plan.verify` says."""
    claim = plan.claims.fit
    if claim is None or claim.trainer is None:
        return []
    price = file_price(plan, TrainerName(claim.trainer))
    if missing_bytes(price, plan.claims.memory_limit_bytes, claim.probability) <= 0:
        return []
    needed, there = format_bytes(price.needed_memory_bytes), format_bytes(price.limit_bytes)
    found = f"{needed} of {there} are needed, which suffice with probability {price.fit_probability:.2f}"
    return [f"fit: {claim.trainer}'s file is claimed to fit with probability {claim.probability:g}, but {found}"]
