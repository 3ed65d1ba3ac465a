"""Axes as one: along which two axes of a mesh something is laid out alike, so that they are as good as one.

Data and experts' axes share out the samples between them, and all but experts is so as if they were one axis. Data and
context axes use the same parameters, of which both share out the state.
"""

from __future__ import annotations

from strategy.graph.graph import Graph, Op, Role
from strategy.graph.signature import Signature
from strategy.space.rules import beside_experts, named_layouts, staying_with_experts
from strategy.space.space import Keep


def one_but_for_experts(graph: Graph, data: int = 0) -> Keep:
    """Whether the data axis and the next are as one, of samples: but for what is beside experts or stays with them."""
    beside, staying = beside_experts(graph), staying_with_experts(graph)

    def keep(op: Op, signature: Signature) -> bool:
        names = (*op.inputs, *op.outputs, *op.updates)
        if op.name in beside or not staying.isdisjoint(names):
            return True
        return all(nd_sbp[data] == nd_sbp[data + 1] for nd_sbp in signature.layouts)

    return keep


def one_for_parameters(graph: Graph, axis: int, data: int = 0) -> Keep:
    """Whether parameters, their gradients and state take the data axis and another, of positions, as one."""
    alike = _of_parameters(graph)

    def keep(op: Op, signature: Signature) -> bool:
        return all(nd_sbp[data] == nd_sbp[axis] for name, nd_sbp in named_layouts(op, signature) if name in alike)

    return keep


def _of_parameters(graph: Graph) -> frozenset[str]:
    """Parameters and their state, what is made of one of them alone, and their gradients on the way to updates."""
    shapes = {name: value.spec.shape for name, value in graph.values.items()}
    ahead, behind = [value.name for value in graph.with_role(Role.VARIABLE)], list[str]()
    for name in ahead:
        op = graph.updater.get(name)
        behind += [] if op is None else [one for one in op.inputs if shapes[one] == shapes[name]]
    found = set(ahead)
    while ahead:
        name = ahead.pop()
        more = [out for op in graph.consumers[name] for out in op.outputs if shapes[out] == shapes[name]]
        ahead += [one for one in more if one not in found]
        found.update(more)
    while behind:
        name = behind.pop()
        producer = graph.producer.get(name)
        found.add(name)
        behind += [] if producer is None else [one for one in producer.inputs if shapes[one] == shapes[name]]
    return frozenset(found)
