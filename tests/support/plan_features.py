"""What a plan has in it, read off its graph and its layout: what is asked for and moves nothing does not count."""

from __future__ import annotations

from collections.abc import Iterator

from strategy.graph.graph import Phase, Role
from strategy.graph.ops.copy import TO_HOST
from strategy.layout.arrangement import arrange
from strategy.layout.config import Recompute
from strategy.layout.layout import home_of
from strategy.lowering.exchange_buckets import in_buckets
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.zero_layouts import DATA
from strategy.plan.plan import Plan
from strategy.sbp.sbp import NdSbp, Owner, Split
from strategy.sbp.tensor import DType, Shape

COMBINED = ("schedule", "zero", "offload", "recompute", "accumulation", "tied embedding", "uneven", "tiles")
"""First words of what combinations are counted of; all schedules are one of them, all stages of ZeRO too."""


def features_of(plan: Plan) -> Iterator[str]:
    """Every feature of a plan, and whether it combines several."""
    found = {*_degrees(plan), *_zero(plan), *_memory(plan), *_layout(plan), *_exchange(plan)}
    combined = sum(any(name.startswith(words) for name in found) for words in COMBINED)
    yield from sorted(found)
    yield from (f"{least} combined" for least in (3, 4, 5) if combined >= least)
    yield str(plan.training.optimizer)
    yield from ["frozen"] * bool(plan.training.frozen)
    yield from ["skips"] * plan.training.skips
    yield from ["mlp"] * isinstance(plan.model, MlpConfig)
    yield from ["float32"] * (plan.training.dtype is DType.FLOAT32)


def _degrees(plan: Plan) -> Iterator[str]:
    """With one micro-batch all schedules are the same, so none counts."""
    config = plan.config
    yield from ["data"] * (config.dp > 1)
    yield from ["tensor"] * (config.tp > 1)
    yield from ["context"] * (config.cp > 1)
    yield from ["pipeline"] * (config.pp > 1)
    yield from ["accumulation"] * (config.num_micro_batches > 1)
    yield from [f"schedule {config.schedule}"] * (config.pp > 1 and config.num_micro_batches > 1)
    if isinstance(plan.model, GptConfig):
        stage_of = plan.layout.stages.stage_of
        yield from ["tied embedding"] * (stage_of["embed"] != stage_of["logits"])


def _zero(plan: Plan) -> Iterator[str]:
    """Stages that share out what they are for: state, sums of gradients, parameters."""
    graph, layout, stage = plan.graph, plan.layout, plan.config.zero_stage
    if not stage:
        return
    meant = {
        1: list(graph.updater),
        2: [op.outputs[0] for op in graph.ops if op.kind == "accumulate" and op.phase is not Phase.FORWARD],
        3: [value.name for value in graph.with_role(Role.VARIABLE) if ":" not in value.name],
    }
    homes = (home_of(graph, layout.stages, layout.signatures, name) for name in meant[stage])
    kinds = {type(home.layout[DATA]) for home in homes if home is not None}
    yield from [f"zero {stage}"] * bool(kinds & {Split, Owner})
    yield from ["owner"] * (Owner in kinds)


def _memory(plan: Plan) -> Iterator[str]:
    graph, config = plan.graph, plan.config
    yield from ["offload of activations"] * any(op.kind == TO_HOST and op.phase is Phase.FORWARD for op in graph.ops)
    yield from ["offload of optimizer"] * any(op.updates and graph.on_host(op) for op in graph.ops)
    if any(op.repeats for op in graph.ops):
        yield from [f"recompute {config.recompute}"] * (config.recompute is not Recompute.NONE)
        yield from ["recompute by name"] * bool(config.recompute_values)
        yield from ["layers that keep all"] * bool(config.kept_layers)
    yield from ["tiles"] * any(":tile1" in op.name for op in graph.ops)


def _exchange(plan: Plan) -> Iterator[str]:
    """Gradients in buckets, and those of several streams."""
    buckets = [action for action in in_buckets(plan.priced).arrangement.actions if action.members]
    yield from ["buckets"] * bool(buckets)
    yield from ["several streams"] * (plan.cluster.overlaps and any(action.turn for action in buckets))


def _layout(plan: Plan) -> Iterator[str]:
    mesh = plan.config.mesh
    tensors = arrange(plan.graph, plan.layout, plan.pipeline).tensors
    specs = plan.graph.values
    yield from ["uneven"] * any(_is_uneven(specs[held.value].spec.shape, held.layout, mesh) for held in tensors)


def _is_uneven(shape: Shape, layout: NdSbp, mesh: Shape) -> bool:
    """Whether ranks hold pieces of different sizes of a tensor (not: one of them all of it)."""
    parts = [1] * len(shape)
    for sbp, size in zip(layout, mesh, strict=True):
        if isinstance(sbp, Split):
            parts[sbp.dim] *= size
    return any(rows % count for rows, count in zip(shape, parts, strict=True))
