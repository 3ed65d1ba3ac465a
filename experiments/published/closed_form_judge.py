"""Closed-form judge: what `sbplan predict` would say of a plan, which a search has no hand in.

The closed form knows degrees, micro-batch, laps, recomputing and ZeRO, not layouts: what lies otherwise than by
Megatron's rule is priced as by it, with attention fused and activations split by positions between products along the
tensor axis, as plans have them. It does not know schedules that split the backward pass: those are priced as 1F1B of
the same stages, which is no faster, and the answer says that it is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.estimate import estimate
from strategy.closed_form.job import Job, Shape
from strategy.graph.graph import Phase
from strategy.hardware.devices import named_sheet
from strategy.layout.config import Offload
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.plan.plan import Plan
from strategy.sbp.sbp import Split

_EXPERTS = ("grouped_matmul", "batch_matmul")
"""Kinds of the products of experts; the weights [experts, in, out] are what they read second."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Seconds of a step by the closed form, at most so many if `bounds`; None where it cannot say, and why."""

    seconds: float | None
    bounds: bool = False
    why_not: str = ""


def judged(plan: Plan, framework: str, fitted: FittedConstants) -> Judgement:
    """What the closed form says of a plan, run by a framework."""
    try:
        job = job_of(plan, framework)
    except InputError as error:
        return Judgement(None, why_not=str(error))
    seconds = float(estimate([job], fitted).seconds[0])
    return Judgement(seconds, bounds=plan.config.schedule.splits_backward)


def job_of(plan: Plan, framework: str) -> Job:
    """A plan as a job of the closed form.

    Raises:
        InputError: it has no words for the model, the device, the network, or for what waits on the host.
    """
    config, cluster = plan.config, plan.cluster
    sheet = named_sheet(cluster.device.name)
    if sheet is None:
        raise InputError("the closed form has no data sheet", where="judge", got=cluster.device.name)
    if config.offload is not Offload.NONE:
        raise InputError("the closed form knows no offloading", where="judge", got=str(config.offload))
    shape = shape_of(plan.model)
    return Job(
        shape=shape,
        device=sheet,
        framework=framework,
        precision="single" if plan.training.precision is Precision.FULL else "half",
        gpus=cluster.devices,
        gpus_per_node=cluster.devices_per_node,
        nic_bytes_per_s=cluster.inter.bytes_per_s,
        fabric=cluster.fabric,
        seq=plan.model.tokens_per_sample,
        global_batch=plan.training.global_batch,
        micro_batch=config.micro_batch,
        tp=config.tp,
        pp=config.pp,
        cp=config.cp,
        ep=_expert_ranks(plan) if shape.experts else 1,
        virtual=config.virtual_stages if config.schedule is Schedule.INTERLEAVED else 1,
        zero=max(config.zero_stage, 1 if _shares_optimizer(plan) else 0),
        recompute=str(config.recompute),
        sequence_parallel=config.tp > 1,
        flash=True,
    )


def shape_of(model: Model) -> Shape:
    """A model's dimensions in the words of the closed form.

    Raises:
        InputError: it is no transformer of the families that are known here.
    """
    if isinstance(model, GptConfig):
        return Shape.transformer(model.layers, model.width, model.heads, 4 * model.width, model.vocabulary)
    if isinstance(model, LlamaConfig):
        return Shape.transformer(model.layers, model.width, model.heads, model.hidden, model.vocabulary,
                                 kv_heads=model.key_heads, gated=True, tied=False)  # fmt: skip
    if isinstance(model, MixtralConfig):
        head = model.width // model.heads
        return Shape(
            layers=model.layers, hidden=model.width, heads=model.heads, kv_heads=model.key_heads, head_qk=head,
            head_v=head, vocab=model.vocabulary, gated=True, tied=False, attention_layers=model.layers,
            moe_layers=model.layers, experts=model.experts, top_k=model.choices, expert_ffn=model.hidden,
            capped=model.capacity_factor > 0,
        )  # fmt: skip
    raise InputError(
        "the closed form has no words for this model",
        where="judge",
        got=type(model).__name__,
        expected="GPT, Llama or Mixtral",
    )


def _expert_ranks(plan: Plan) -> int:
    """Ranks among which the experts of a layer are dealt out."""
    for op in plan.graph.ops:
        if op.kind in _EXPERTS and op.phase is Phase.FORWARD and op.layer is not None:
            weights = plan.layout.signatures[op.name].inputs[1]
            return math.prod(size for sbp, size in zip(weights, plan.config.mesh, strict=True) if sbp == Split(0))
    return 1


def _shares_optimizer(plan: Plan) -> bool:
    """Whether the ranks of the data axis share out most of the update, as stage 1 of ZeRO has it."""
    if plan.config.dp == 1:
        return False
    shared = whole = 0
    for op in plan.graph.ops:
        if op.phase is Phase.UPDATE and op.updates:
            size = plan.graph.values[op.updates[0]].spec.size
            along = plan.layout.signatures[op.name].updates[0][0]
            whole += size
            shared += size if isinstance(along, Split) else 0
    return 2 * shared > whole
