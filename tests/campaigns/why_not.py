"""Why not: what is named as standing in the way of pins does, and 1 % less of it still does.

A case is a search for a small model with pins that leave no plan, for want of devices, samples, layers, heads or memory
in turn. With what is named there has to be a plan, and with 1 % less, or one less of what is counted, none.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from experiments.explanation.constraint import LESS, Constraint, relaxed
from experiments.explanation.why_not import Refusal, why_not
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError
from strategy.layout.config import Offload, Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.search.search import search
from strategy.space.request import Pins, Request
from tests.campaigns.outcome import Outcome
from tests.support.small_plans import request

KINDS = ("devices", "batch", "layers", "heads", "memory")
QUOTAS = {kind: 0.2 for kind in KINDS}
TIME_LIMIT_S = 600.0
"""Of the clock, not of computing: a case takes some 10 s of that, and many times as long on a busy machine."""


def run(cases: int, seed: int) -> Outcome:
    """Ask of `cases` searches."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(f"search {number}", check(number, exercised), exercised)
    return outcome


def refused_request(number: int) -> Request:
    """A search whose pins leave nothing, for want of what it is the turn of."""
    rng, kind = random.Random(number), KINDS[number % len(KINDS)]
    model = GptConfig(layers=2, width=24, heads=rng.choice((2, 3)), sequence=4, vocabulary=16)
    devices, batch = rng.choice((2, 4)), rng.choice((4, 12))
    if kind == "devices":
        return _asked(devices, 60, model, Pins(tp=rng.choice((3, 5, 6)), micro_batch=1, recompute=Recompute.NONE))
    if kind == "batch":
        return _asked(devices, batch, model, Pins(dp=devices, micro_batch=rng.choice((7, 8, 9)), zero_stage=0))
    if kind == "layers":
        return _asked(4, batch, model, Pins(pp=4, tp=1, micro_batch=rng.choice((1, 2)), recompute=Recompute.NONE))
    if kind == "heads":
        heads = {2: 3, 4: rng.choice((2, 3, 6))}[devices]
        return _asked(devices, batch, replace(model, heads=heads), Pins(dp=1, pp=1, micro_batch=1))
    pins = Pins(dp=2, tp=1, pp=1, micro_batch=2, recompute=Recompute.NONE, offload=Offload.NONE, zero_stage=0)
    return replace(_asked(2, batch, model, pins), memory_limit_bytes=rng.choice((20_000, 60_000, 100_000)))


def _asked(devices: int, batch: int, model: GptConfig, pins: Pins) -> Request:
    return replace(request(devices, Training(batch), model=model), pins=pins, gap=0.5)  # any plan will do


def check(number: int, exercised: list[str]) -> Iterator[str]:
    """What is wrong with the answer."""
    asked = refused_request(number)
    answer = why_not(asked, Budget.of(TIME_LIMIT_S))
    if not isinstance(answer, Refusal) or answer.constraint is None:
        yield f"no constraint is named: {answer}"
        return
    found = answer.constraint
    exercised.append(found.kind)
    if found.kind != KINDS[number % len(KINDS)]:
        yield f"what stands in the way is said to be {found.kind}"
    if not found.least:
        yield f"not said to be the least: {found}"
    if not has_plan(asked, found, found.needed):
        yield f"no plan with {found}"
    if has_plan(asked, found, less(found)):
        yield f"a plan with {less(found)} already: {found}"


def less(constraint: Constraint) -> int:
    """1 % less than what is named, and no more than one less; the present figure, if that is more."""
    return max(constraint.current, min(int(LESS * constraint.needed), constraint.needed - 1))


def has_plan(asked: Request, constraint: Constraint, figure: int) -> bool:
    """Whether a search finds a plan with this figure; a model that cannot be has none."""
    try:
        search(relaxed(asked, constraint, figure), simulate=simulated_step, budget=Budget.of(TIME_LIMIT_S))
    except (InfeasibleError, InputError):
        return False
    return True
