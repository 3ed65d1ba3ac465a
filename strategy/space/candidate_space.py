"""The search space of one candidate.

It holds the signatures that the rules of its axes, the stage of ZeRO and the user's pins leave for every op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from strategy.graph.graph import Graph
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.layout import Stages, assign_stages
from strategy.passes.planned import planned_graph
from strategy.passes.zero_layouts import zero_filter
from strategy.sbp.sbp import B, NdSbp
from strategy.sbp.tensor import Shape
from strategy.space.axes_as_one import one_but_for_experts, one_for_parameters
from strategy.space.axis_orders import placements_of
from strategy.space.offloads import check_host
from strategy.space.pins import check_pins, pinned
from strategy.space.request import Pins, Request
from strategy.space.rules import AlongAxes, along_axes
from strategy.space.space import Keep, SearchSpace, all_of
from strategy.space.trainer_space import trainer_axis

FREE: Mapping[str, str] = {
    "replica": "samples",
    "data": "samples",
    "expert": "experts",
    "context": "positions",
    "tensor": "heads split",
}
"""The rules of the axes in a search: layers follow samples and positions, and are free along a tensor axis."""

WITHOUT_ZERO = {"data": "samples split", "expert": "experts split", "context": "positions split"}
"""Rule of an axis -> what is left of it where ZeRO says how parameters lie along it."""

AS_PINNED = {
    "samples": "samples split",
    "experts": "experts split",
    "positions": "positions split",
    "heads split": "samples shared",
}
"""Rule -> what it leaves open where layouts are pinned."""


def free_rules(config: PlanConfig) -> tuple[str, ...]:
    """The rules of a candidate's axes in a search."""
    return tuple(FREE[axis] for axis in config.axes)


def space_of(request: Request, config: PlanConfig, rules: Sequence[str], *, folded: bool = True) -> SearchSpace:
    """The layouts of one candidate under one rule per axis; every stage's time counts once.

    Unless `folded`, repeated layers may be laid out each in its own way.

    Raises:
        InputError: with every illegal pin, or pinned stages that make a pass go against the pipeline, or what is to be
            offloaded has nowhere to go.
        InfeasibleError: the mesh does not allow the pinned layouts; names every op.
    """
    check_host(request.cost.cluster, config.offload)
    graph = planned_graph(request.model, request.training_with(config), config)
    placements, mesh, pins = placements_of(config), config.mesh, request.pins
    check_pins(graph, layouts=pins.layouts, stages=pins.stages, placements=pins.placements, axes=len(mesh))
    stages = assign_stages(
        graph,
        placements,
        pins=pins.numbered_stages,
        schedule=config.schedule,
        laps=config.virtual_stages,
        runs=config.runs,
    )
    by_rules = None if tuple(rules) == config.axes else _rules(request, graph, config, config.axes, as_pinned=False)
    return SearchSpace(
        graph=graph,
        stages=stages,
        pipeline=request.pipeline_of(config),
        cost=request.cost,
        converter=Converter(request.cost, placements),
        keep=_keep(graph, stages, config, pins),
        wanted=_rules(request, graph, config, rules).wanted,
        owned=config.zero_owner,
        folded=folded,
        rule_based=by_rules,
    )


def _rules(
    request: Request, graph: Graph, config: PlanConfig, rules: Sequence[str], *, as_pinned: bool = True
) -> AlongAxes:
    """The rules of the axes; where ZeRO says how parameters lie along the data axis, they do not.

    Layouts that are pinned may ask for what no samples would lead to; a trainer has a rule of its own for its tensor
    axis.
    """
    if as_pinned and request.pins.layouts:
        rules = [AS_PINNED.get(rule, rule) for rule in rules]
    found = along_axes(graph, config.mesh, _but_for_zero(config, rules))
    if request.pins.trainer is None or config.tp == 1:
        return found
    own = trainer_axis(graph, config.tp, int(getattr(request.model, "vocabulary", 0)))
    return AlongAxes(MappingProxyType({**found.rules, len(config.mesh) - 1: own}))


def _keep(graph: Graph, stages: Stages, config: PlanConfig, pins: Pins) -> Keep:
    """What ZeRO and pins leave."""
    mesh, data = stages.placements[0].mesh, config.data_axis
    kept = {"zero": zero_filter(graph, config, stages.stage_of)} if config.zero_stage else {}
    if config.ep > 1 and mesh[data] > 1 and not pins.layouts:
        kept["experts"] = one_but_for_experts(graph, data)
    if config.cp > 1 and mesh[data] > 1 and not (pins.layouts or config.zero_owner):
        kept["context"] = one_for_parameters(graph, config.axes.index("context"), data)
    if pins.layouts:
        layouts = {name: _on_mesh(nd, mesh) for name, nd in pins.layouts.items()}
        kept["pins"] = pinned(graph, layouts, mesh, owned=config.zero_owner)
    return all_of(kept)


def _but_for_zero(config: PlanConfig, rules: Sequence[str]) -> Sequence[str]:
    """Rules without what ZeRO decides, where there is any."""
    return [WITHOUT_ZERO.get(rule, rule) for rule in rules] if config.zero_stage else rules


def _on_mesh(nd_sbp: NdSbp, mesh: Shape) -> NdSbp:
    """The layout as signatures write it: along an axis of one rank there is nothing to lay out."""
    return tuple(B if parts == 1 else sbp for sbp, parts in zip(nd_sbp, mesh, strict=True))
