"""Closed-form judge: what `sbplan predict` would say of a plan, which a search has no hand in.

The closed form knows degrees, micro-batch, laps, recomputing and ZeRO, not layouts. What a plan uses its tensor axis
for is read off its products: where they split samples along it, it is one more data axis, and the weights that lie
split along it are ZeRO's; else it is Megatron's; where some do and some do not, the closed form has no words. It has
attention fused, and activations split by positions between products along a tensor axis, as plans have them. Schedules
that split the backward pass are priced as 1F1B of the same stages, which is no faster: the answer is a bound then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.estimate import estimate
from strategy.closed_form.job import Job, Shape
from strategy.cost.cost import expected
from strategy.graph.graph import Phase
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Product
from strategy.hardware.devices import named_sheet
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.plan.plan import Plan
from strategy.sbp.sbp import Split

_IN_CLOSED_FORM = {Recompute.MEMORY_BOUND: Recompute.SELECTIVE}
"""Neither repeats a product; the closed form tells times of none apart."""

SOME = 0.1
"""Share of the FLOPs of products that may be laid out otherwise than the others."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Seconds of a step by the closed form, at most so many if `bounds`; None where it cannot say, and why.

    `read_as` says what it takes the plan for, where that has other degrees.
    """

    seconds: float | None
    bounds: bool = False
    read_as: str = ""
    why_not: str = ""


def judged(plan: Plan, framework: str, fitted: FittedConstants) -> Judgement:
    """What the closed form says of a plan, run by a framework."""
    try:
        job = job_of(plan, framework)
    except InputError as error:
        return Judgement(None, why_not=str(error))
    seconds = float(estimate([job], fitted).seconds[0])
    other = f"dp {job.dp}, tp {job.tp}, cp {job.cp}, pp {job.pp}" if job.tp != plan.config.tp else ""
    return Judgement(seconds, bounds=plan.config.schedule.splits_backward, read_as=other)


def job_of(plan: Plan, framework: str) -> Job:
    """A plan as a job of the closed form.

    Raises:
        InputError: it has no words for the model, the device, the network, the layouts, or for what waits on the host.
    """
    config, cluster = plan.config, plan.cluster
    sheet = named_sheet(cluster.device.name)
    if sheet is None:
        raise InputError("the closed form has no data sheet", got=cluster.device.name)
    if config.offload is not Offload.NONE:
        raise InputError("the closed form knows no offloading", got=str(config.offload))
    shape = shape_of(plan.model)
    tp, micro_batch = _tensor_ranks(plan)
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
        micro_batch=micro_batch,
        tp=tp,
        pp=config.pp,
        cp=config.cp,
        ep=_expert_ranks(plan) if shape.experts else 1,
        virtual=config.virtual_stages if config.schedule is Schedule.INTERLEAVED else 1,
        zero=max(config.zero_stage, 1 if _shares_optimizer(plan, along_tensor=tp < config.tp) else 0),
        recompute=str(_IN_CLOSED_FORM.get(config.recompute, config.recompute)),
        sequence_parallel=tp > 1,
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
        got=type(model).__name__,
        expected="GPT, Llama or Mixtral",
    )


def _tensor_ranks(plan: Plan) -> tuple[int, int]:
    """Ranks among which a layer is shared out as by Megatron's rule, and samples of a micro-batch on a data rank then.

    Raises:
        InputError: some of the products split samples along the tensor axis and some do not.
    """
    config = plan.config
    if config.tp == 1:
        return 1, config.micro_batch
    by_sample = whole = 0
    for op in plan.graph.ops:
        definition = op_definition(op.kind)
        if op.phase is Phase.FORWARD and op.layer is not None and isinstance(definition.cost, Product):
            samples = 0 if definition.expert_weights is None else 1  # rows of experts are [experts, samples, ...]
            read, written = expected(plan.graph.specs(op.inputs)), expected(plan.graph.specs(op.outputs))
            flop = definition.flop(read, written, op.attrs)
            whole += flop
            by_sample += flop if plan.layout.signatures[op.name].inputs[0][-1] == Split(samples) else 0
    share = by_sample / max(whole, 1)
    if share <= SOME:
        return config.tp, config.micro_batch
    if share < 1 - SOME or config.micro_batch % config.tp:
        raise InputError(
            "the closed form has no words for these layouts",
            got=f"{share:.0%} of the products' FLOPs with samples split along the tensor axis of {config.tp} ranks",
            expected="all or none",
        )
    return 1, config.micro_batch // config.tp


def _expert_ranks(plan: Plan) -> int:
    """Ranks among which the experts of a layer are dealt out."""
    for op in plan.graph.ops:
        place = op_definition(op.kind).expert_weights
        if place is not None and op.phase is Phase.FORWARD:
            weights = plan.layout.signatures[op.name].inputs[place]
            return math.prod(size for sbp, size in zip(weights, plan.config.mesh, strict=True) if sbp == Split(0))
    return 1


def _shares_optimizer(plan: Plan, *, along_tensor: bool) -> bool:
    """Whether ranks with samples of their own share out most of the update, as stage 1 of ZeRO has it."""
    axes = [0, -1] if along_tensor else [0]
    shared = whole = 0
    for op in plan.graph.ops:
        if op.phase is Phase.UPDATE and op.updates:
            size = plan.graph.values[op.updates[0]].spec.size
            held = plan.layout.signatures[op.name].updates[0]
            whole += size
            shared += size if any(isinstance(held[axis], Split) for axis in axes) else 0
    return 2 * shared > whole
