"""Axes as one: what is laid out alike along two axes, and what need not be."""

from __future__ import annotations

from strategy.graph.graph import Role
from strategy.graph.signature import op_signatures
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training, training_graph
from strategy.space.axes_as_one import one_but_for_experts, one_for_parameters
from strategy.space.rules import beside_experts
from tests.support.small_plans import MODEL

TRAINING = Training(global_batch=4)
GRAPH = training_graph(MODEL, TRAINING)
EXPERTS = MixtralConfig(
    layers=2, width=64, heads=2, key_heads=1, hidden=96, experts=4, choices=2, sequence=32, vocabulary=64,
    rotary_base=10000.0,
)  # fmt: skip


def test_what_is_not_of_experts_takes_two_axes_as_one() -> None:
    graph = training_graph(EXPERTS, TRAINING)
    keep, count = one_but_for_experts(graph), 0
    for op in graph.ops:
        alike = all(nd[0] == nd[1] for one in op_signatures(graph, op, (2, 2)) if keep(op, one) for nd in one.layouts)
        count += not alike
        touches = {graph.parameter_of(name) for name in (*op.inputs, *op.outputs, *op.updates)}
        of_experts = any(name.startswith("layers.") and ".moe." in name and "router" not in name for name in touches)
        assert alike or op.name in beside_experts(graph) or of_experts, op.name
    assert count > 10


def test_parameters_take_two_axes_as_one() -> None:
    """Also what is made of them, and their gradients; what has positions need not."""
    keep, count = one_for_parameters(GRAPH, 1), 0
    for op in GRAPH.ops:
        kept = [one for one in op_signatures(GRAPH, op, (2, 2)) if keep(op, one)]
        assert kept, op.name
        for position, name in enumerate((*op.inputs, *op.outputs, *op.updates)):
            alike = all(one.layouts[position][0] == one.layouts[position][1] for one in kept)
            assert alike or GRAPH.values[name].role is not Role.VARIABLE, (op.name, name)
            count += not alike
    assert count > 50
    (gradient,) = (op for op in GRAPH.ops if "layers.0.mlp.fc1.weight" in op.updates)
    assert all(
        one.inputs[0][0] == one.inputs[0][1] for one in op_signatures(GRAPH, gradient, (2, 2)) if keep(gradient, one)
    )
