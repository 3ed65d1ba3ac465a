"""Newer features of models at once: experts, tokens further ahead, codes of every precision, in random layouts.

A plan of every case is what `verify` accepts, and trains as one device does: in float64 within 1e-9, on codes up to
what their digits allow. There a loss may be off by 2^-6, and a parameter, in units of its tensor's largest change, by
so many roundings as `ROUNDINGS` says, on the average over the tensor: where layouts add up in another order, a code is
the next one, and a token of equal chances goes to another expert.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Product
from strategy.models.decoder import DecoderConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType
from tests.campaigns.outcome import Outcome, survived
from tests.campaigns.transparency import check, on_one_device
from tests.support.random_plans import turn
from tests.support.reference import Array
from tests.support.small_plans import config_of, corpus, deduced_plan, lowered, random_plan, request, train

CODED = tuple(precision for precision in Precision if precision.scaling is not None)
PRECISIONS = (Precision.FULL, *CODED)
DEGREES = ((2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2), (1, 2, 2))
WAYS = ("random layout", "deduced")
ROUNDINGS = 8
QUOTAS = {
    **{f"precision {precision}": 0.1 for precision in PRECISIONS},
    **{f"ahead {ahead}": 0.25 for ahead in (0, 1, 2)},
    "experts": 0.4,
    "experts and ahead": 0.2,
    "experts on codes": 0.3,
    "experts shared out": 0.1,
    "zero": 0.2,
    "pipeline": 0.3,
    "random layout": 0.3,
    "codes are split": 0.2,
}
STEPS = 2


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        plan, way = plan_of(number)
        name = f"python -m tests.campaigns model-features --cases 1 --seed {number}"
        outcome.add(name, survived(problems(plan)), (way, *exercised(plan)))
    return outcome


def plan_of(number: int) -> tuple[Plan, str]:
    """The plan of a case, and how it was laid out."""
    rng = random.Random(number)
    precision, (dp, tp, pp) = turn(number, "precision", PRECISIONS), turn(number, "degrees", DEGREES)
    experts = turn(number, "experts", (0, 4))
    model = DecoderConfig(
        layers=2, width=32, heads=2, key_heads=rng.choice((1, 2)), head_width=32, hidden=64, sequence=32,
        vocabulary=rng.randint(20, 30), ahead=turn(number, "ahead", (0, 1, 2)), experts=experts,
        choices=2 if experts else 0, expert_hidden=32 if experts else 0, sparse=(1,) if experts else (0,),
    )  # fmt: skip
    training = Training(
        4,
        num_micro_batches=2,
        optimizer=Optimizer.SGD,
        lr=0.05,
        seed=number,
        precision=precision,
        dtype=DType.FLOAT64 if precision is Precision.FULL else DType.FLOAT32,
    )
    shared = experts and dp > 1 and rng.random() < 0.6
    stage = rng.choice((0, 1, 2, 3)) if dp > 1 else 0
    config = config_of(training, dp=dp, tp=tp, pp=pp, ep=dp if shared else 1, zero_stage=stage, zero_min_size=64)
    asked, way = request(dp * tp * pp, training, model=model), turn(number, "way", WAYS)
    if way == "deduced" or shared:  # experts are shared out by a rule, which few random layouts keep to
        return deduced_plan(asked, config, config.axes), "deduced"
    return random_plan(asked, config, rng), way


def exercised(plan: Plan) -> Iterator[str]:
    """What a plan is good for."""
    model, config, precision = plan.model, plan.config, plan.training.precision
    assert isinstance(model, DecoderConfig)
    yield f"precision {precision}"
    yield f"ahead {model.ahead}"
    if model.experts:
        yield "experts"
        yield from ("experts and ahead",) * bool(model.ahead)
        yield from ("experts on codes",) * bool(precision.scaling)
        yield from ("experts shared out",) * (config.ep > 1)
    yield from ("zero",) * bool(config.zero_stage)
    yield from ("pipeline",) * (config.pp > 1)
    yield from ("codes are split",) * any(_splits_codes(plan))


def _splits_codes(plan: Plan) -> Iterator[bool]:
    """Whether products on codes with a scale per block are cut."""
    for op in plan.graph.ops:
        cost = op_definition(op.kind).cost
        if isinstance(cost, Product) and cost.blocks:
            yield any(str(sbp) != "B" for layout in plan.layout.signatures[op.name].inputs[:2] for sbp in layout)


def problems(plan: Plan) -> Iterator[str]:
    """Everything in which the training of a plan differs from one device, or from what the plan says."""
    yield from verify(plan)  # ranks of large ones stand for one another in what they claim
    program = lowered(plan)
    if plan.training.precision is Precision.FULL:
        yield from check(plan, program, steps=STEPS)
        return
    trained = train(plan, corpus(plan.model.vocabulary), steps=STEPS, program=program)
    start, _ = on_one_device(plan, steps=0)
    wanted, losses = on_one_device(plan, steps=STEPS)
    for step, (report, loss) in enumerate(zip(trained.reports, losses, strict=True), 1):
        if not abs(report.loss - loss) <= 2.0**-6 * abs(loss):
            yield f"loss of step {step}: {report.loss}, on one device {loss}"
    whole: dict[str, Array] = {name: np.zeros_like(array) for name, array in wanted.items()}
    for trainer in trained.trainers:
        for piece in trainer.owned_pieces():
            whole[piece.name][tuple(slice(begin, end) for begin, end in piece.box)] = piece.array
    rounding = 2.0**-2 if plan.training.precision is Precision.NVFP4 else 2.0**-4
    for name in (one for one in wanted if ":" not in one):
        moved = float(np.max(np.abs(wanted[name] - start[name])))
        off = float(np.mean(np.abs(whole[name] - wanted[name]))) / moved if moved else 0.0
        if not off <= ROUNDINGS * rounding:
            yield f"{name} is off by {off:.3g} of its largest change"
