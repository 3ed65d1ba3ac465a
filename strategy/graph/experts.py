"""Experts: which ops of a graph read a weight per expert, and which multiply something with it or make its gradient."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.graph.graph import Graph
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Product


def weights_of_experts(graph: Graph) -> Mapping[str, str]:
    """Op -> the value that it reads with a weight per expert, along its first dim: a parameter in some form."""
    places = ((op, op_definition(op.kind).expert_weights) for op in graph.ops)
    read = ((op.name, op.inputs[place]) for op, place in places if place is not None)
    return {name: value for name, value in read if graph.parameter_of(value)}


def products_of_experts(graph: Graph) -> frozenset[str]:
    """The ops that do, and those that make gradients of what they read."""
    readers = weights_of_experts(graph)
    roots = {graph.by_name[name].root for name in readers}
    products = {op.name for op in graph.ops if op.root in roots and isinstance(op_definition(op.kind).cost, Product)}
    return frozenset(products | readers.keys())
