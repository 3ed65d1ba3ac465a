"""Weight gradients: the ops of a backward pass that no earlier op's backward pass waits for.

    d_out -- op:dx --> d_in       the backward pass of the op before waits for it
      |----- op:dw --> sum        is wanted by the update alone, and may be done at any time

Ops that only prepare the gradient of a weight go with it, if they belong to the same forward op, and so does its
accumulation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from strategy.base.identity import Identity
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.ops import op_definition


def weight_gradients(graph: Graph) -> frozenset[str]:
    """The names of these ops, whether they are a pass of their own already or not."""
    return _known(Identity(graph))


@lru_cache(maxsize=8)
def _known(known: Identity) -> frozenset[str]:
    graph = cast(Graph, known.held)
    found = {op.name for op in graph.ops if op.phase is Phase.WEIGHT}
    if found:
        return frozenset(found)
    for op in reversed(graph.ops):
        readers = [r for name in op.outputs for r in (*graph.consumers[name], *graph.followers.get(name, ()))]
        computes = op.phase is Phase.BACKWARD and not op_definition(op.kind).accumulates
        if computes and not any(_awaits(r, op, found) for r in readers):
            found.add(op.name)
    written = {name for op in graph.ops if op.name in found for name in op.outputs}
    sums = (op for op in graph.ops if op_definition(op.kind).accumulates)
    found.update(op.name for op in sums if not written.isdisjoint(op.inputs))
    return frozenset(found)


def _awaits(reader: Op, op: Op, found: set[str]) -> bool:
    """Whether `reader` keeps `op` in the backward pass."""
    if reader.phase is not Phase.BACKWARD or op_definition(reader.kind).accumulates:
        return False
    return reader.name not in found or _origin(reader) != _origin(op)


def _origin(op: Op) -> str:
    """The forward op that a backward op belongs to."""
    return op.parameter or op.root
