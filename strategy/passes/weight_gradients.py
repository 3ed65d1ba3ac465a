"""Weight gradients: the part of the backward pass that no earlier op's backward pass waits for.

    d_out -- op:dx --> d_in       stays: the backward pass of the op before waits for it
      |----- op:dw --> sum        is wanted by the update alone, and may be done at any time

Zero-bubble schedules (Qi et al. 2024, arXiv:2401.10241) run it as chunks of its own. Ops that only prepare it go with
it, if they belong to the same forward op, and so does its accumulation.
"""

from __future__ import annotations

from dataclasses import replace

from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.ops import op_definition


def defer_weight_gradients(graph: Graph) -> Graph:
    """The graph with `Phase.WEIGHT` for these ops, which stand after all other backward ops."""
    deferred: set[str] = set()
    for op in reversed(graph.ops):
        readers = [r for name in op.outputs for r in (*graph.consumers[name], *graph.followers.get(name, ()))]
        computes = op.phase is Phase.BACKWARD and not op_definition(op.kind).accumulates
        if computes and not any(_awaits(r, op, deferred) for r in readers):
            deferred.add(op.name)
    written = {name for op in graph.ops if op.name in deferred for name in op.outputs}
    sums = (op for op in graph.ops if op_definition(op.kind).accumulates)
    deferred.update(op.name for op in sums if not written.isdisjoint(op.inputs))
    first: list[Op] = []
    weights: list[Op] = []
    last: list[Op] = []
    for op in graph.ops:
        if op.name in deferred:
            weights.append(replace(op, phase=Phase.WEIGHT))
        else:
            (last if op.phase is Phase.UPDATE else first).append(op)
    return replace(graph, ops=(*first, *weights, *last))


def _awaits(reader: Op, op: Op, deferred: set[str]) -> bool:
    """Whether `reader` keeps `op` in the backward pass."""
    if reader.phase is not Phase.BACKWARD or op_definition(reader.kind).accumulates:
        return False
    return reader.name not in deferred or _origin(reader) != _origin(op)


def _origin(op: Op) -> str:
    """The forward op that a backward op belongs to."""
    return op.parameter or op.root
