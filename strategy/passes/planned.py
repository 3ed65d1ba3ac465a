"""Planned graph: the training graph of a model after the passes that a plan's config asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from strategy.graph.graph import Graph
from strategy.layout.config import PlanConfig
from strategy.models.base import Model
from strategy.passes.offload import offload_activations, offload_optimizer
from strategy.passes.recompute import recompute
from strategy.passes.ring_attention import split_sequences
from strategy.passes.tiling import tile
from strategy.passes.training import Training, Watch, training_graph
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.passes.zero import share_out


def planned_graph(model: Model, training: Training, config: PlanConfig, watch: Watch | None = None) -> Graph:
    """The graph that a plan lays out; `watch` is told of the graph after every pass.

    The last few are kept where nobody watches: whoever searches, prices and verifies a plan asks for the same one.

    Raises:
        InputError: a pattern of `training` or `config` matches nothing, nothing is left to train, or the model has no
            sequences to split.
        GraphError: the model's graph does not compose.
    """
    if watch is None:
        return _kept(model, training, config)
    return _planned(training_graph(model, training, watch), config, watch)


@lru_cache(maxsize=4)
def _kept(model: Model, training: Training, config: PlanConfig) -> Graph:
    return _planned(_trained(model, training.of_few_micro_batches), config, None)


@lru_cache(maxsize=8)
def _trained(model: Model, training: Training) -> Graph:
    """What many configurations have in common."""
    return training_graph(model, training)


def _planned(graph: Graph, config: PlanConfig, watch: Watch | None) -> Graph:
    passes: dict[str, Callable[[Graph], Graph]] = {
        "recompute": lambda graph: recompute(graph, config.recompute, config.recompute_values, config.kept_layers),
        "activations_to_host": lambda graph: (
            offload_activations(graph, config.offload_values) if config.offload.of_activations else graph
        ),
        "context": lambda graph: split_sequences(graph, config),
        "zero": lambda graph: share_out(graph, config),
        "optimizer_to_host": lambda graph: offload_optimizer(graph) if config.offload.of_optimizer else graph,
        "tiling": lambda graph: tile(graph, config.tiles, config.tiled),
        "weight_gradients": lambda graph: defer_weight_gradients(graph) if config.schedule.splits_backward else graph,
    }
    for name, transform in passes.items():
        before, graph = graph, transform(graph)
        if watch is not None and graph is not before:
            watch(name, graph)
    return graph
