"""Weight gradients as a pass of their own (`strategy.graph.weight_gradients`).

Zero-bubble schedules (Qi et al. 2024, arXiv:2401.10241) run it as chunks of its own.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.weight_gradients import weight_gradients


def defer_weight_gradients(graph: Graph) -> Graph:
    """The graph with `Phase.WEIGHT` for these ops, which stand after all other backward ops."""
    deferred = weight_gradients(graph)
    first: list[Op] = []
    weights: list[Op] = []
    last: list[Op] = []
    for op in graph.ops:
        if op.name in deferred:
            weights.append(replace(op, phase=Phase.WEIGHT))
        else:
            (last if op.phase is Phase.UPDATE else first).append(op)
    return replace(graph, ops=(*first, *weights, *last))
