"""Planned graph: the training graph of a model after the passes that a plan's config asks for."""

from __future__ import annotations

from strategy.config import PlanConfig
from strategy.graph import Graph
from strategy.models.base import Model
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, Watch, training_graph


def planned_graph(model: Model, training: Training, config: PlanConfig, watch: Watch | None = None) -> Graph:
    """The graph that a plan lays out; `watch` is told of the graph after every pass.

    Raises:
        InputError: a pattern of `training` or `config` matches nothing, or nothing is left to train.
        GraphError: the model's graph does not compose.
    """
    graph = training_graph(model, training, watch)
    repeated = recompute(graph, config.recompute, config.recompute_values)
    if watch is not None and repeated is not graph:
        watch("recompute", repeated)
    return repeated
