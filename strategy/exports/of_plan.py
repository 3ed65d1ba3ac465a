"""A plan in trainers' words: what its configuration and its layouts come to, and what no trainer could be told.

Trainers of language models lay layers out in one way: samples along the data axis; along the tensor axis columns, then
rows (Shoeybi et al. 2019, arXiv:1909.08053), the embedding and the head by words, norms by position or not at all
(Korthikanti et al. 2022, arXiv:2205.05198); experts by expert. A plan whose layouts depart from that says more than a
trainer's file can.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strategy.graph.experts import weights_of_experts
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.layout.config import Offload, Recompute
from strategy.layout.layout import home_of
from strategy.plan.plan import Plan
from strategy.sbp.sbp import B, Sbp, Split
from strategy.space.trainer_space import norms_of, parameter_layouts
from strategy.trainers.architecture import as_decoder, description
from strategy.trainers.trained import TrainedModel, TrainerName, configured, uncut

_SHARED = 0.5
"""Part of the optimiser's state that data-parallel ranks must share out for it to count as shared."""
_NAMED = 4
"""Layouts of one kind that a complaint names."""


@dataclass(frozen=True, slots=True)
class SaidOfPlan:
    """A plan as a trainer's configuration, and what of it that leaves out, in words."""

    trained: TrainedModel
    left_out: tuple[str, ...]


def said_of_plan(plan: Plan, trainer: TrainerName) -> SaidOfPlan:
    """The configuration that comes closest to a plan, in the words that all trainers have.

    Raises:
        InputError: the model is no decoder of text.
    """
    config, training, cluster = plan.config, plan.training, plan.cluster
    plain = uncut(trainer, plan.model, training, plan.ranks, cluster.devices_per_node)
    left_out = [*_of_config(plan)]
    if description(plain.model, plain.sequence) != as_decoder(plan.model):
        left_out.append(f"model {plan.model_name}: features that configurations have no words for")
    by_position = False
    if config.tp > 1:
        by_position, departures = _along_tensor_axis(plan)
        left_out += departures
    if training.precision.scaling:
        left_out.append(f"precision {training.precision}: linear maps of layers on codes; written as {plain.half}")
    trained = configured(plain, config, 1 if _state_is_shared(plan) else 0)
    experts = config.tp if _experts_are_cut(plan) else 1
    return SaidOfPlan(replace(trained, etp=experts, sequence_parallel=by_position), tuple(left_out))


def _of_config(plan: Plan) -> Iterator[str]:
    """What of a configuration has no words in any trainer's file."""
    config = plan.config
    if config.recompute is Recompute.MEMORY_BOUND:
        yield "recompute memory-bound: only what memory-bound ops write is computed again"
    if config.kept_layers:
        yield f"kept_layers {', '.join(map(str, config.kept_layers))}: layers that compute nothing again"
    if config.recompute_values:
        yield f"recompute_values {', '.join(config.recompute_values)}: values that are computed again by name"
    if config.offload is not Offload.NONE:
        yield f"offload {config.offload}"
    if config.tiles > 1:
        yield f"tiles {config.tiles}: linear maps that are cut into columns in time"
    if config.zero_owner:
        yield "zero_owner: whole tensors with one rank each"
    if config.stage_order or config.strides:
        yield "stage_order, strides: stages and axes that lie over the ranks in another order"
    if config.runs:
        yield f"runs {' + '.join(map(str, config.runs))}: layers that are not dealt out evenly"
    elif plan.graph.num_layers % (config.pp * config.virtual_stages):
        yield f"{plan.graph.num_layers} layers on {config.pp} x {config.virtual_stages} stages: not dealt out evenly"


def _state_is_shared(plan: Plan) -> bool:
    """Whether data-parallel ranks share out most of the optimiser's state."""
    graph, layout = plan.graph, plan.layout
    shared = whole = 0
    for value in graph.with_role(Role.VARIABLE):
        home = home_of(graph, layout.stages, layout.signatures, value.name) if value.parameter else None
        if home is None:
            continue
        split = any(isinstance(home.layout[axis], Split) for axis in plan.config.replica_axes)
        whole += value.spec.nbytes
        shared += value.spec.nbytes if split else 0
    return shared > _SHARED * whole


def _readings(plan: Plan) -> Iterator[tuple[Op, str, Sbp]]:
    """(op of a forward pass, parameter, how it reads that along the tensor axis), through casts."""
    graph = plan.graph
    axis = len(plan.config.axes) - 1
    of_parameter = {value.name: value.name for value in graph.with_role(Role.VARIABLE) if not value.parameter}
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            continue
        if len(op.inputs) == 1 and op.inputs[0] in of_parameter:
            of_parameter[op.outputs[0]] = of_parameter[op.inputs[0]]
            continue
        for name, layout in zip(op.inputs, plan.layout.signatures[op.name].inputs, strict=True):
            if name in of_parameter:
                yield op, of_parameter[name], layout[axis]


def _along_tensor_axis(plan: Plan) -> tuple[bool, list[str]]:
    """Whether norms split positions along the tensor axis, and what departs from columns, rows and words."""
    graph, axis = plan.graph, len(plan.config.axes) - 1
    allowed = dict(parameter_layouts(graph, int(getattr(plan.model, "vocabulary", 0))))
    read = list(_readings(plan))
    listed = list(dict.fromkeys(f"{name} as {sbp}" for _, name, sbp in read if sbp not in allowed.get(name, (sbp,))))
    found = []
    if listed:
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        found.append(f"parameters laid out otherwise along the tensor axis: {', '.join(listed[:_NAMED])}{more}")
    experts = _parameters_of_experts(graph)
    if len({isinstance(sbp, Split) for _, name, sbp in read if name in experts}) > 1:
        found.append("experts of which some weights are cut along the tensor axis, and some are not")
    norms = {plan.layout.signatures[name].inputs[0][axis] for name in norms_of(graph)}
    if len(norms) > 1 or norms - {B, Split(1)}:
        ways = ", ".join(sorted(map(str, norms)))
        found.append(f"norms laid out unlike one another along the tensor axis, or by sample: {ways}")
    return norms == {Split(1)}, found


def _parameters_of_experts(graph: Graph) -> frozenset[str]:
    return frozenset(graph.parameter_of(value) for value in weights_of_experts(graph).values())


def _experts_are_cut(plan: Plan) -> bool:
    """Whether experts are cut along the tensor axis."""
    experts = _parameters_of_experts(plan.graph)
    return plan.config.tp > 1 and any(isinstance(sbp, Split) for _, name, sbp in _readings(plan) if name in experts)
