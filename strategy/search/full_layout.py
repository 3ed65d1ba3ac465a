"""Full layout: a proposal of the short model, laid out on all layers of the deep one and priced.

Where the deep one is small, the same stages are then solved on all of its ops, which may be laid out better so.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InternalError, OutOfTimeError, present
from strategy.bounds.one_mesh import on_one_stage
from strategy.graph.graph import Graph
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import assign_stages
from strategy.layout.objective import Priced
from strategy.passes.planned import planned_graph
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.search.search_state import LayoutProposal
from strategy.search.template.layer_mix import mixed_layers
from strategy.space.axis_orders import placements_of
from strategy.space.candidate_space import free_rules
from strategy.space.request import Request
from strategy.space.short_model import MIDDLE, expanded, shortened


def priced_in_full(request: Request, one: LayoutProposal, budget: Budget = UNLIMITED) -> Priced:
    """A proposal in full.

    Raises:
        OutOfTimeError: there is not enough time.
    """
    config = one.config(request.model.layers)
    graph, placements = planned_graph(request.model, request.training_with(config), config), placements_of(config)
    budget.check()
    way = _short_graph(request, one.found.config, keeps=one.keeps), one.signatures
    other, mixed = way, frozenset[int]()
    if one.mix is not None:
        other = _short_graph(request, one.found.config, keeps=one.mix.keeps), one.mix.signatures
        mixed = mixed_layers(config, request.model.layers, one.mix.share)
    signatures = expanded(way, graph, other, mixed)
    if signatures is None:
        raise InternalError(f"the layers of {request.model_name} are not alike")
    stages = assign_stages(graph, placements, schedule=config.schedule, laps=config.virtual_stages, runs=config.runs)
    layout = lay_out(graph, stages, signatures, Converter(request.cost, placements))
    budget.check()
    return Priced(graph, layout, request.pipeline_of(config), request.cost)


def _short_graph(request: Request, config: PlanConfig, *, keeps: bool) -> Graph:
    """The graph of the short model; `keeps`: whether its layer between keeps all."""
    alone, short = on_one_stage(config), present(shortened(request.model), "a short model")
    alone = replace(alone, kept_layers=(MIDDLE,)) if keeps else alone
    return planned_graph(short, request.training_with(alone), alone)


def solved_in_full(request: Request, one: LayoutProposal, known: Priced, budget: Budget) -> Priced:
    """The best layout of a proposal's configuration, if it fits or is best where every stage has the least memory.

    Else the known one; the time being up ends it.
    """
    config, cutoff_ns = one.config(request.model.layers), known.objective_ns
    limits = request.memory_limits(config)
    for limit in dict.fromkeys((max(limits), min(limits))):
        within = replace(request, memory_limit_bytes=limit)
        try:
            found = solve_candidate(within, config, rules=free_rules(config), budget=budget, cutoff_ns=cutoff_ns)
        except OutOfTimeError:
            return known
        if found is None or found.objective_ns >= cutoff_ns:
            return known
        if all(peak <= most for peak, most in zip(found.peaks, limits, strict=True)):
            return replace(known, layout=found.layout)
    return known
