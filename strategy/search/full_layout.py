"""Full layout: a proposal of the short model, laid out on all layers of the deep one and priced."""

from __future__ import annotations

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InternalError, present
from strategy.bounds.layer_template import on_one_stage
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import assign_stages
from strategy.layout.objective import Priced
from strategy.passes.planned import planned_graph
from strategy.search.search_state import LayoutProposal
from strategy.space.candidates import Request, placements_of
from strategy.space.short_model import expanded, shortened


def priced_in_full(request: Request, one: LayoutProposal, budget: Budget = UNLIMITED) -> Priced:
    """A proposal in full.

    Raises:
        OutOfTimeError: there is not enough time.
    """
    config = one.found.config
    graph, placements = planned_graph(request.model, request.training_with(config), config), placements_of(config)
    budget.check()
    alone, short = on_one_stage(config), present(shortened(request.model), "a short model")
    small = planned_graph(short, request.training_with(alone), alone)
    signatures = expanded(small, graph, one.signatures)
    if signatures is None:
        raise InternalError(f"the layers of {request.model_name} are not alike")
    stages = assign_stages(
        graph, placements, schedule=config.schedule, laps=config.virtual_stages, runs=config.runs
    )
    layout = lay_out(graph, stages, signatures, Converter(request.cost, placements))
    budget.check()
    return Priced(graph, layout, request.pipeline_of(config), request.cost)
