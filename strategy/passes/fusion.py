"""Fusion: pairs of ops that another op does at once, for which GPUs have one kernel; on the forward pass.

    gate -> silu -> mul with up           becomes   swiglu of gate and up
    x -> dropout -> add to a residual     becomes   add_dropped of x and the residual

What lies between is neither written nor kept for the backward pass. Which ops are pairs is said by the op that does
both (`OpDef.fuses`). The results are those of the pair but for rounding in half precision, once in place of twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from strategy.graph.graph import Graph, Op
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import OpDef


def fuse(graph: Graph, kept: Sequence[str]) -> Graph:
    """A forward pass with every pair fused whose first op is read by the second alone, in the same repeated layer.

    Values of `kept` are read by others too.
    """
    fused: dict[str, Op] = {}
    gone: set[str] = set()
    for op in graph.ops:
        for position, name in enumerate(op.inputs):
            found = _fused(graph, op, position, kept)
            if found is not None and op.name not in fused:
                fused[op.name] = found
                gone.add(name)
    if not gone:
        return graph
    ops = tuple(fused.get(op.name, op) for op in graph.ops if not gone.intersection(op.outputs))
    values = {name: value for name, value in graph.values.items() if name not in gone}
    return replace(graph, values=values, ops=ops)


def _pairs() -> Mapping[tuple[str, str], OpDef]:
    return {(found.fuses.first, found.fuses.then): found for found in REGISTRY.values() if found.fuses is not None}


_PAIRS = _pairs()


def _fused(graph: Graph, then: Op, position: int, kept: Sequence[str]) -> Op | None:
    """The op that does `then` and what writes its input at `position`; None where there is none."""
    first = graph.producer.get(then.inputs[position])
    if first is None or len(then.inputs) != 2 or len(first.outputs) != 1:
        return None
    name, other = then.inputs[position], then.inputs[1 - position]
    definition = _PAIRS.get((first.kind, then.kind))
    alone = graph.consumers[name] == (then,) and name != other and name not in kept
    together = (first.layer, first.phase) == (then.layer, then.phase)
    # Operands of an `add` or a `mul` may be of fewer dims than its result.
    alike = graph.values[other].spec == graph.values[name].spec == graph.values[then.outputs[0]].spec
    if definition is None or not (alone and together and alike):
        return None
    return replace(then, kind=definition.kind, inputs=(*first.inputs, other), attrs={**first.attrs, **then.attrs})
