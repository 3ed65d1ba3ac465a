"""The mixture of experts against loops over tokens, its gradient, and its layouts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Role
from strategy.graph.signature import op_signatures
from strategy.nn.module import Module, Parameter
from strategy.nn.moe import Moe, Routing
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import DType, TensorSpec
from tests.support.reference import run_graph

Array = npt.NDArray[Any]
G, S, D, E, H, K = 3, 5, 4, 4, 6, 2


class Scalar(Module):
    """The layer, and a loss that looks at every element of its output and at the balance."""

    def __init__(self, capacity_factor: float | None) -> None:
        self.moe = Moe(D, H, E, routing=Routing(K), capacity_factor=capacity_factor, std=0.5)
        self.look = Parameter((D,), "normal(1.0)")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        y, balance = self.moe(inputs[0])
        return (y * self.parameter("look", inputs[0])).sum() + balance * 0.5, y


def traced(capacity_factor: float | None) -> tuple[GraphBuilder, str, str]:
    tracer = Tracer()
    module = Scalar(capacity_factor)
    tracer.adopt(module, DType.FLOAT64)
    x = tracer.input("x", TensorSpec((G, S, D), DType.FLOAT64))
    loss, y = module(x)
    return tracer.graph, loss.name, y.name


def drawn(graph: Graph) -> tuple[dict[str, Array], dict[str, Array]]:
    rng = np.random.default_rng(2)
    variables = {v.name: rng.standard_normal(v.spec.shape) for v in graph.with_role(Role.VARIABLE)}
    return {"x": rng.standard_normal((G, S, D))}, variables


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def by_loops(x: Array, p: dict[str, Array], capacity: float) -> tuple[Array, float, int]:
    """Output, balancing loss, and how many choices found no slot; first choices go before second ones."""
    y, balance, dropped = np.zeros_like(x), 0.0, 0
    for g in range(G):
        odds = np.exp(x[g] @ p["moe.router"])
        odds /= odds.sum(axis=-1, keepdims=True)
        best = np.argsort(-odds, axis=-1)[:, :K]
        used, demand = [0] * E, np.zeros(E)
        for choice in range(K):
            for token in range(S):
                expert = best[token, choice]
                demand[expert] += 1
                used[expert] += 1
                if used[expert] > capacity:
                    dropped += 1
                    continue
                share = odds[token, expert] / odds[token, best[token]].sum()
                y[g, token] += share * (gelu(x[g, token] @ p["moe.up"][expert]) @ p["moe.down"][expert])
        balance += S * E * float((demand / (S * K)) @ odds.mean(axis=0))
    return y, balance, dropped


@pytest.mark.parametrize("factor", [None, 0.5, 1.0, 4.0])
def test_the_layer_against_loops_over_tokens(factor: float | None) -> None:
    builder, loss, out = traced(factor)
    graph = builder.build(loss=loss)
    batch, variables = drawn(graph)
    values = run_graph(graph, [batch], variables)
    capacity = math.inf if factor is None else math.ceil(K * S * factor / E)
    y, balance, dropped = by_loops(batch["x"], variables, capacity)
    assert (dropped > 0) is (factor in (0.5, 1.0))
    np.testing.assert_allclose(values[out], y, rtol=1e-10, atol=1e-12)
    assert float(values[loss]) == pytest.approx(float((y * variables["look"]).sum()) + 0.5 * balance, rel=1e-10)


def test_where_nothing_is_dropped_both_ways_are_one() -> None:
    outputs = []
    for factor in (None, 4.0):
        builder, loss, out = traced(factor)
        graph = builder.build(loss=loss)
        batch, variables = drawn(graph)
        outputs.append(run_graph(graph, [batch], variables)[out])
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("factor", [None, 1.0])
def test_gradients_against_finite_differences(factor: float | None) -> None:
    builder, loss, _ = traced(factor)
    gradients = differentiate(builder, loss)
    assert set(gradients) == {"moe.router", "moe.up", "moe.down", "look"}
    graph = builder.build(loss=loss)
    batch, variables = drawn(graph)
    values = run_graph(graph, [batch], variables)
    rng = np.random.default_rng(3)
    for name, terms in gradients.items():
        found = sum(values[term] for term in terms)
        for _ in range(4):
            direction = rng.standard_normal(variables[name].shape)
            ends = [
                float(run_graph(graph, [batch], {**variables, name: variables[name] + e * direction})[loss])
                for e in (1e-6, -1e-6)
            ]
            assert float((found * direction).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4), name


def test_expert_parallelism_is_a_layout() -> None:
    """Tokens by group before and after, experts between: the buffer changes from S(g) to S(e) and back."""
    builder, loss, _ = traced(1.0)
    graph = builder.build(loss=loss)
    layouts = {
        name: {(s.inputs[0][0], s.outputs[0][0]) for s in op_signatures(graph, graph.by_name[f"moe.{name}"], (2,))}
        for name in ("dispatch", "up_matmul", "combine")
    }
    assert (Split(0), Split(1)) in layouts["dispatch"]
    assert (B, Split(0)) in layouts["dispatch"], "from whole tokens a rank fills the slots of its own experts"
    assert (Split(0), Split(0)) in layouts["up_matmul"]
    assert {(Split(1), Split(0)), (Split(0), P)} <= layouts["combine"]


@pytest.mark.parametrize("settings", [{"routing": Routing(0)}, {"routing": Routing(5)}, {"capacity_factor": 0.0}])
def test_layers_that_cannot_route_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="MoE"):
        Moe(D, H, E, **settings)
