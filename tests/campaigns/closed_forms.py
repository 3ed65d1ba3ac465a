"""Closed forms against templates that are solved: random models with experts, meshes, nodes, precisions and ZeRO.

What a configuration is said to take at least in a micro-batch (the work of its ops, what experts exchange, what
parameters and gradients do) may not be more than the bound of the layout problem of its layers, weighed so.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from strategy.base.budget import UNLIMITED
from strategy.base.errors import InfeasibleError, InputError
from strategy.bounds.closed_forms import ClosedForms, all_of_micro_batch
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import BYTES, OF_STEP, SIZE, FloatArray
from strategy.bounds.quick_bound import least_work
from strategy.bounds.template_cut import TemplateName
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.template.template_solve import Chosen, solve_template
from strategy.space.offloads import updates_no_faster
from strategy.space.request import Request
from strategy.space.short_model import shortened
from tests.campaigns.outcome import Outcome
from tests.support.small_plans import request

PRECISIONS = (Precision.FULL, Precision.BF16, Precision.FP8_CURRENT, Precision.FP8_BLOCK, Precision.MXFP8)
SPEEDUPS = {"bf16_speedup": 2.0, "fp16_speedup": 2.0, "fp8_speedup": 4.0, "mx_scales": True}
BATCH = 16
MOST_TRIES = 30
ROUNDED = 8.0
"""Nanoseconds by which sums of whole ones may be off."""
SHARES = 64.0
"""Bytes by which uneven shares of scales and the like may be."""
MOST_SLACK = 1.5
"""Inequalities that hold with less room are near to what there is."""
QUOTAS = {
    "experts shared out": 0.3,
    "experts and tensor axis": 0.15,
    "nodes": 0.3,
    "recompute": 0.2,
    "low precision": 0.2,
    "gathered or reduced": 0.2,
    "rows exchanged": 0.35,
    "tensor axis alone": 0.15,
    "half at least": 0.1,
    "once per step, or with every micro-batch": 0.1,
    "activations on the host": 0.12,
    "optimiser on the host": 0.12,
}


def run(cases: int, seed: int) -> Outcome:
    """Each case is one configuration of one model."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(f"case {number}", check(random.Random(number), exercised), exercised)
    return outcome


def check(rng: random.Random, exercised: list[str]) -> Iterator[str]:
    """What is said to be taken at least, and is not."""
    for _ in range(MOST_TRIES):
        model = random_model(rng)
        try:
            asked, config = random_request(rng, model)
            of_axes = rng.random() < 0.4
            found = solved(asked, config, tensor_axis=of_axes)
        except (InfeasibleError, InputError):
            continue  # the mesh does not suit the model
        if found is None:
            continue
        forms = ClosedForms(asked, least_work(asked))
        least_ns = forms.following_ns(config)
        if not of_axes:
            work = forms.work.seconds(config)
            least_ns += int((work.micro_batch_s - work.following_s) * 1e9) + forms.exchange_ns(config)
        exercised += features(asked, config, forms, of_axes=of_axes)
        if least_ns > 0.5 * found.cut.inequality.least:
            exercised.append("half at least")
        if least_ns > found.cut.inequality.least + model.layers:
            yield f"{config} of {model}: {least_ns} ns at least, {found.cut.inequality.least} found"
        if not of_axes:
            yield from (f"{config} of {model}: {said}" for said in refuted(rng, asked, config, forms, exercised))
        return
    yield "no mesh suits any model"


def refuted(
    rng: random.Random, asked: Request, config: PlanConfig, forms: ClosedForms, exercised: list[str]
) -> Iterator[str]:
    """The inequalities that do not hold where layouts are that cost least under random weights."""
    weights = np.array([rng.choice((0.0, 1.0)) * 10 ** rng.uniform(-3, 1) for _ in range(SIZE)])
    found = solved(asked, config, weights=weights, tensor_axis=False)
    if found is None:
        return
    for inequality in forms.inequalities(config):
        value = float(inequality.weights @ found.point)
        off = SHARES if inequality.weights[BYTES].any() else max(inequality.weights.max(), 1.0) * ROUNDED
        if value < inequality.least - off:
            yield f"{inequality.weights} at {found.point} is {value}, not {inequality.least} or more"
        of_step = bool(inequality.weights[OF_STEP].any())
        if of_step and 0 < inequality.least < MOST_SLACK * value:
            exercised.append("once per step, or with every micro-batch")


def random_model(rng: random.Random) -> Model:
    """With experts, mostly."""
    width, hidden = rng.choice((64, 128, 256)), rng.choice((96, 128, 256, 384))
    if rng.random() < 0.15:
        return GptConfig(layers=8, width=width, heads=4, sequence=16, vocabulary=96)
    experts = rng.choice((4, 8))
    return MixtralConfig(
        layers=5, width=width, heads=4, key_heads=rng.choice((2, 4)), hidden=hidden, experts=experts,
        choices=rng.choice((1, 2, 3)), sequence=rng.choice((16, 32)), vocabulary=64, rotary_base=10000.0,
        capacity_factor=rng.choice((0.0, 0.0, 1.25)),
    )  # fmt: skip


def random_request(rng: random.Random, model: Model) -> tuple[Request, PlanConfig]:
    """On one node or several."""
    experts = getattr(model, "experts", 1)
    dp, tp = rng.choice((1, 2, 4, 8)), rng.choice((1, 1, 2, 4))
    ep = rng.choice([parts for parts in (1, 2, 4, 8) if dp % parts == 0 and experts % parts == 0])
    stage, recompute = rng.choice((0, 1, 2, 3)), rng.choice((Recompute.NONE, Recompute.NONE, *Recompute))
    per_node = rng.choice([parts for parts in (2, 4, dp * tp) if dp * tp % parts == 0] or [dp * tp])
    micro_batch = rng.choice([size for size in (1, 2, 4) if BATCH % (dp * size) == 0])
    training = Training(
        global_batch=BATCH,
        precision=rng.choice(PRECISIONS),
        expert_room=rng.choice((0, 4.0)),
        expert_imbalance=rng.choice((1.0, 1.5)),
    )
    plain = replace(training, precision=Precision.BF16)
    asked = request(dp * tp, plain, model=model, backend="cuda", per_node=per_node)
    cluster = asked.cost.cluster
    device = replace(cluster.device, **SPEEDUPS)
    asked = replace(asked, training=training, cost=replace(asked.cost, cluster=replace(cluster, device=device)))
    zero = {"zero_stage": stage, "zero_min_size": rng.choice((1, 4096))}
    offload = rng.choice((Offload.NONE, Offload.NONE, *Offload))
    if not updates_no_faster(model, training, asked.cost):
        raise InputError("a host that updates faster than devices")
    schedule, count = Schedule.ONE_F_ONE_B, BATCH // (dp * micro_batch)
    return asked, PlanConfig(
        dp, tp, 1, micro_batch, count, schedule, ep=ep, recompute=recompute, offload=offload, **zero
    )


def solved(
    asked: Request, config: PlanConfig, *, tensor_axis: bool, weights: FloatArray | None = None
) -> Chosen | None:
    """The layouts of all that a micro-batch does, or of what has weights, that cost least; None if none are legal."""
    short = shortened(asked.model)
    if short is None:
        raise InputError("a model without layers that repeat")
    name = TemplateName(config, tensor_axis)
    weights = all_of_micro_batch(asked.model.layers) if weights is None else weights
    template = LayerTemplate.named(name, asked, short, UNLIMITED)
    found = solve_template(name, template, weights, UNLIMITED)
    return found if isinstance(found, Chosen) else None


def features(asked: Request, config: PlanConfig, forms: ClosedForms, *, of_axes: bool) -> Iterator[str]:
    """What a case is about."""
    low = asked.training.precision in PRECISIONS[2:]
    about = {
        "experts shared out": config.ep > 1,
        "experts and tensor axis": config.ep > 1 and config.tp > 1,
        "nodes": asked.cost.cluster.nodes > 1,
        "recompute": config.recompute is not Recompute.NONE,
        "low precision": low,
        "gathered or reduced": forms.exchange_ns(config) > 0 and not of_axes,
        "rows exchanged": forms.dispatch_ns(config) > 0,
        "tensor axis alone": of_axes,
        "activations on the host": config.offload.of_activations,
        "optimiser on the host": config.offload.of_optimizer,
    }
    yield from (name for name, holds in about.items() if holds)
