"""Planned graph: the training graph of a model after the passes that a plan's config asks for."""

from __future__ import annotations

from strategy.config import Context, PlanConfig
from strategy.errors import report
from strategy.graph import Graph
from strategy.models.base import Model
from strategy.passes.recompute import recompute
from strategy.passes.ring_attention import attention_problems, ring_attention
from strategy.passes.training import Training, training_graph


def planned_graph(model: Model, training: Training, config: PlanConfig) -> Graph:
    """The graph that a plan lays out.

    Raises:
        InputError: a pattern of `training` or `config` matches nothing, nothing is left to train, or the model has no
            sequences to split.
        GraphError: the model's graph does not compose.
    """
    graph = training_graph(model, training)
    graph = recompute(graph, config.recompute, config.recompute_values)
    if config.cp == 1:
        return graph
    if config.context is Context.RING:
        return ring_attention(graph, config.cp)
    report(attention_problems(graph, config.cp), where="context parallelism")
    return graph
