"""Planned graph: the training graph of a model after the passes that a plan's config asks for."""

from __future__ import annotations

from strategy.config import Offload, PlanConfig
from strategy.graph import Graph
from strategy.models.base import Model
from strategy.passes.offload import offload_activations, offload_optimizer
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, training_graph


def planned_graph(model: Model, training: Training, config: PlanConfig) -> Graph:
    """The graph that a plan lays out.

    Raises:
        InputError: a pattern of `training` or `config` matches nothing, or nothing is left to train.
        GraphError: the model's graph does not compose.
    """
    graph = training_graph(model, training)
    graph = recompute(graph, config.recompute, config.recompute_values)
    if config.offload in (Offload.ACTIVATIONS, Offload.ALL):
        graph = offload_activations(graph, config.offload_values)
    return offload_optimizer(graph) if config.offload in (Offload.OPTIMIZER, Offload.ALL) else graph
