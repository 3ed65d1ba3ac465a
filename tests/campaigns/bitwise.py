"""`--bitwise`: what is not refused learns the same bits as one rank does, and what is refused says along which axis.

Plans of one small GPT for 6 to 12 micro-batches of one size in the global batch, dealt out to 1 to 4 ranks of the data
axis: powers of two and others, stages and owners of ZeRO, pipelines, tensor and context axes, buckets, recomputing,
every optimiser. Losses of all steps, parameters and moments are compared with those of a plan of one rank.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from executor.runtime.bitwise import summation_order
from strategy.base.errors import InfeasibleError, InputError
from strategy.layout.config import Offload, Recompute
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.space.request import Pins
from tests.campaigns.outcome import Outcome, survived
from tests.support.random_plans import turn
from tests.support.small_plans import (
    MODEL,
    Trained,
    config_of,
    corpus,
    deduced_plan,
    lowered,
    plan_by_rules,
    random_plan,
    request,
    train,
)

STEPS = 2
SAMPLES = 2
"""Of a micro-batch on every rank."""
TEXT = corpus(MODEL.vocabulary)
LEAVES = (6, 8, 9, 10, 12)
DEGREES: tuple[dict[str, int], ...] = (
    *({"dp": 2}, {"dp": 2}, {"dp": 3}, {"dp": 3}, {"dp": 4}, {"pp": 2}, {"dp": 2, "pp": 2}, {"dp": 3, "pp": 2}),
    *({"tp": 2}, {"dp": 2, "tp": 2}, {"cp": 2}, {"dp": 2}),
)
ZERO: tuple[dict[str, Any], ...] = (
    *({"zero_stage": stage, "zero_owner": owner, "zero_min_size": 9} for stage in (1, 2, 3) for owner in (False, True)),
    *({}, {}, {}),
)
LIMITS = (1.0, math.inf, math.inf)
BUCKETS = (0, 256, 1 << 30)
OPTIMIZERS = (*Optimizer, Optimizer.ADAMW, Optimizer.ADAMW, Optimizer.SGD)
QUOTAS = {
    "equal": 0.2,
    "refused": 0.2,
    "several nodes on a rank": 0.1,
    "in turn": 0.05,
    **{f"equal with zero {stage}": 0.01 for stage in (1, 2, 3)},
    "equal with pp": 0.05,
    "equal in buckets": 0.05,
}


def run(cases: int, seed: int) -> Outcome:
    """Train `cases` plans that do not hold more than one rank's arithmetic, or are refused."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        met: list[str] = []
        outcome.add(f"plan {number}", survived(check(number, met)), [])
        outcome.coverage.update(set(met))
    return outcome


def check(number: int, met: list[str]) -> Iterator[str]:
    """How a plan differs from one rank."""
    leaves = turn(number, "leaves", LEAVES)
    degrees = turn(number, "degrees", tuple(one for one in DEGREES if leaves % one.get("dp", 1) == 0))
    shares = turn(number, "zero", ZERO) if "dp" in degrees else {}
    limit = turn(number, "limit", LIMITS) if number % 4 == 0 or not shares else math.inf
    how = (limit, turn(number, "optimizer", OPTIMIZERS))
    more = {"bucket_bytes": turn(number, "bucket", BUCKETS), "recompute": turn(number, "recompute", _RECOMPUTES)}
    more["offload"] = turn(number, "offload", (Offload.NONE, Offload.NONE, Offload.OPTIMIZER))
    plan = drawn_plan(number, leaves, how, {**degrees, **shares, **more})
    if plan is None:
        met.append("no such plan")
        return
    told = f"{leaves} micro-batches, {degrees} {shares} {how} {more}"
    try:
        order = summation_order(lowered(plan), plan.graph, plan.layout, plan.config.axes)
    except InputError as error:
        met.append("refused")
        if "along the " not in str(error) and "micro-batches of unequal sizes" not in str(error):
            yield f"{told}: names no axis: {error}"
        return
    if learned(train(plan, TEXT, steps=STEPS, bitwise=True)) != alone(leaves, *how):
        yield f"{told}: other bits than one rank"
        return
    met += ["equal", *(f"equal with {degree}" for degree in degrees), *["in turn"] * (not order.by_rank)]
    met += ["several nodes on a rank"] * any(len(order.nodes(place)) > 1 for place in range(order.parts))
    met += ["equal in buckets"] * (more["bucket_bytes"] > 0 and order.parts > 1)
    met += [f"equal with zero {shares[key]}" for key in shares if key == "zero_stage"]


_RECOMPUTES = (Recompute.NONE, Recompute.NONE, Recompute.FULL)


def drawn_plan(number: int, leaves: int, how: tuple[float, Optimizer], chosen: Mapping[str, Any]) -> Plan | None:
    """By rules or with random signatures; None where the pins leave none."""
    rng = random.Random(number)
    training = training_of(leaves, chosen.get("dp", 1), *how)
    config = config_of(training, **chosen)
    asked = request(math.prod(config.mesh) * config.pp, training)
    if number % 16 == 5:
        return random_plan(asked, config, rng)
    # The weights of tokens are used twice: each use is reduced before they are added up.
    flat: NdSbp = (*[B] * (len(config.mesh) - 1), B)
    split: NdSbp = (Split(0), *flat[1:])
    pins: dict[str, NdSbp] = {}
    if config.dp > 1 and rng.random() < 0.8:
        stage = chosen.get("zero_stage", 0)
        pins = {0: {"token:grad": flat, "embed_position:db": (P, *flat[1:])}, 1: {"token:grad": split}}.get(stage, {})
    asked = replace(asked, pins=Pins(layouts=pins))
    rules = config.axes if config.cp > 1 else ("data", "tensor")
    try:
        return (deduced_plan if number % 2 else plan_by_rules)(asked, config, rules)
    except InfeasibleError:
        return None


def training_of(leaves: int, dp: int, max_norm: float, optimizer: Optimizer) -> Training:
    """Of so many micro-batches in the global batch."""
    return Training(SAMPLES * leaves, leaves // dp, lr=0.02, max_norm=max_norm, optimizer=optimizer)


@cache
def alone(leaves: int, max_norm: float, optimizer: Optimizer) -> tuple[list[float], Mapping[str, bytes]]:
    """What one rank learns."""
    training = training_of(leaves, 1, max_norm, optimizer)
    plan = plan_by_rules(request(1, training), config_of(training), ("data", "tensor"))
    return learned(train(plan, TEXT, steps=STEPS, bitwise=True))


def learned(trained: Trained) -> tuple[list[float], Mapping[str, bytes]]:
    """Losses of all steps, and all parameters and moments, put together, as bytes."""
    whole: dict[str, np.ndarray[Any, Any]] = {}
    for trainer in trained.trainers:
        for piece in trainer.owned_pieces():
            place = whole.setdefault(piece.name, np.zeros(piece.shape, piece.array.dtype))
            place[tuple(slice(*bounds) for bounds in piece.box)] = piece.array
    return [report.loss for report in trained.reports], {name: array.tobytes() for name, array in whole.items()}
