"""Training cost: steps, days and GPU-hours of a token budget, with what failures and saves take of them."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.studies.failures import Lost
from experiments.studies.job_failures import FailureRates, JobSize
from strategy.base.errors import InputError

DAY_S, HOUR_S = 86400.0, 3600.0


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """What training on so many tokens takes: whole steps, days, hours of all GPUs together.

    Days and hours have what is `lost` to failures and saves in them; nothing is where that is None.
    """

    tokens: int
    steps: int
    days: float
    gpu_hours: float
    lost: Lost | None = None


def steps_of(job: JobSize, tokens: int) -> int:
    """Whole steps on so many tokens.

    Raises:
        InputError: they are less than one step.
    """
    if tokens < job.tokens_per_step:
        expected = f"at least the {job.tokens_per_step} of one step"
        raise InputError("less than a step", where="--tokens", got=tokens, expected=expected)
    return -(-tokens // job.tokens_per_step)


def training_cost(job: JobSize, tokens: int, step_s: float, rates: FailureRates | None) -> TrainingCost:
    """What so many tokens take at so many seconds a step, in whole steps; GPUs fail at some rate, or never.

    Raises:
        InputError: the tokens are less than one step, or failures leave no time to train.
    """
    steps = steps_of(job, tokens)
    lost = None if rates is None else rates.lost(job, step_s)
    seconds = steps * step_s / (1.0 if lost is None else lost.goodput)
    return TrainingCost(tokens, steps, seconds / DAY_S, seconds / HOUR_S * job.devices, lost)


def cost_text(cost: TrainingCost, days: str = "") -> str:
    """What one training takes, in a line; `days`: what is said beside these."""
    said = f"{cost.tokens} tokens: {cost.steps} steps, {cost.days:.4g} days{days}, {cost.gpu_hours:.4g} GPU-hours"
    return said if cost.lost is None else f"{said}; {cost.lost}"
