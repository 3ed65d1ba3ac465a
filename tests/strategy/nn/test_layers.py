"""Layers on one device: against their definitions, and their gradients against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph
from strategy.nn import layers
from strategy.nn.layers import BatchNorm, Conv2d, Dropout, Embedding, GroupNorm, Linear, RmsNorm, set_training
from strategy.nn.module import Module
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.sbp.tensor import DType, TensorSpec
from tests.support.reference import run_graph

Array = npt.NDArray[Any]
Values = dict[str, Array]


class Applied(Module):
    """A function of traced tensors as a module, with the layers that it uses."""

    def __init__(self, function: Callable[..., Tensor], **held: Module) -> None:
        self.function = function
        vars(self).update(held)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def traced(model: Module, inputs: Mapping[str, Array], *, weigh: bool = True) -> tuple[Graph, dict[str, str]]:
    """The graph of a model and of the gradients of the sum of its result times the input `weights`."""
    tracer = Tracer()
    tracer.adopt(model, DType.FLOAT64)
    tensors = [tracer.input(n, TensorSpec(a.shape, DType(str(a.dtype)))) for n, a in inputs.items() if n != "weights"]
    y = model(*tensors)
    if not weigh:
        return tracer.graph.build(), {}
    weights = tracer.input("weights", y.spec)
    axes = tuple(range(len(y.shape)))
    loss = y.apply("weighed", "mul", weights).apply("loss", "reduce_sum", attrs={"axes": axes, "keepdims": 0})
    gradients = {name: terms[0] for name, terms in differentiate(tracer.graph, loss.name).items()}
    return tracer.graph.build(loss=loss.name), gradients


def drawn(*shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in shapes]


def assert_gradients(graph: Graph, gradients: Mapping[str, str], inputs: Values, variables: Values) -> None:
    """Every variable's gradient against central differences in two random directions."""
    rng = np.random.default_rng(1)

    def run(name: str, at: Array) -> Values:
        start = {key: (at if key == name else array).copy() for key, array in variables.items()}
        return run_graph(graph, [inputs], start)

    for name, gradient in gradients.items():
        found = run(name, variables[name])[gradient]
        for _ in range(2):
            direction = rng.standard_normal(found.shape)
            ends = [float(run(name, variables[name] + step * direction)[graph.loss]) for step in (1e-5, -1e-5)]
            assert float((found * direction).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-6)


def start(graph: Graph, model: Module) -> Values:
    rng = np.random.default_rng(2)
    return {name: 1 + 0.3 * rng.standard_normal(parameter.shape) for name, parameter in model.parameters()}


def batch_norm_by_hand(x: Array, gain: Array, bias: Array) -> Array:
    mean, variance = x.mean(axis=(0, 2, 3), keepdims=True), x.var(axis=(0, 2, 3), keepdims=True)
    return np.asarray((x - mean) / np.sqrt(variance + 1e-5) * gain[:, None, None] + bias[:, None, None])


def test_batch_norm_uses_the_batch_and_its_averages_follow_once_per_step() -> None:
    first, second = drawn((4, 3, 2, 5), (4, 3, 2, 5))
    second += np.array([0.0, 3.0, -40.0])[:, None, None]
    model = BatchNorm(3, momentum=0.2)
    graph, _ = traced(model, {"x": first}, weigh=False)
    variables = start(graph, model)
    before = {name: array.copy() for name, array in variables.items()}
    values = run_graph(graph, [{"x": first}, {"x": second}], variables)
    np.testing.assert_allclose(
        values["norm"], batch_norm_by_hand(second, before["weight"], before["bias"]), rtol=1e-10, atol=1e-12
    )
    whole = np.concatenate([first, second])
    mean, variance = whole.mean(axis=(0, 2, 3)), whole.var(axis=(0, 2, 3), ddof=1)
    np.testing.assert_allclose(variables["running_mean"], 0.8 * before["running_mean"] + 0.2 * mean, rtol=1e-12)
    np.testing.assert_allclose(
        variables["running_variance"], 0.8 * before["running_variance"] + 0.2 * variance, rtol=1e-12
    )


def test_the_averages_of_micro_batches_are_those_of_one_big_batch() -> None:
    (batch,) = drawn((8, 3, 2, 5))
    batch *= np.linspace(1.0, 5.0, 8)[:, None, None, None]
    found = []
    for count in (1, 2, 4, 8):
        model = BatchNorm(3)
        pieces = np.split(batch, count)
        graph, _ = traced(model, {"x": pieces[0]}, weigh=False)
        variables = start(graph, model)
        run_graph(graph, [{"x": piece} for piece in pieces], variables)
        found.append([variables["running_mean"], variables["running_variance"]])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-12)


def test_batch_norm_in_evaluation_uses_the_averages_and_leaves_them() -> None:
    (x,) = drawn((4, 3, 5))
    model = BatchNorm(3)
    set_training(model, False)
    graph, _ = traced(model, {"x": x}, weigh=False)
    variables = start(graph, model)
    y = run_graph(graph, [{"x": x}], variables)["norm"]
    mean, variance, gain, bias = (
        variables[name][:, None] for name in ("running_mean", "running_variance", "weight", "bias")
    )
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + 1e-5) * gain + bias, rtol=1e-12)
    assert graph.updater == {}


def test_gradients_of_convolution_norm_and_pooling() -> None:
    """Through the statistics of a batch, of a group, windows, channels and a mean over the image."""
    conv, norm = Conv2d(2, 4, (3, 3), stride=(2, 1), padding=(1, 1)), BatchNorm(4)
    group, head = GroupNorm(2, 4), Conv2d(4, 6, (1, 3), groups=2, bias=False)

    def forward(x: Tensor) -> Tensor:
        y = layers.avg_pool(norm(conv(x)), "pool", (2, 2), (1, 2), (1, 0))
        return layers.global_avg_pool(head(group(layers.max_pool(y, "top", (2, 1), (1, 1)))), "mean")

    x, weights = drawn((3, 2, 6, 7), (3, 6))
    model = Applied(forward, conv=conv, norm=norm, group=group, head=head)
    graph, gradients = traced(model, {"x": x})
    assert set(gradients) == {name for name, _ in model.parameters() if "running" not in name}
    assert_gradients(graph, gradients, {"x": x, "weights": weights}, start(graph, model))


def test_gradients_of_attention_with_grouped_rotary_heads() -> None:
    q, k, v, up = Linear(6, 16), Linear(6, 8, bias=False), Linear(6, 8), Linear(6, 16)
    norm = RmsNorm(6)

    def forward(x: Tensor) -> Tensor:
        x = norm(x)
        heads = [
            layers.rotary(part(x).reshape(f"{name}.heads", (2, 5, count, 4)), f"{name}.rotary")
            for name, part, count in (("q", q, 4), ("k", k, 2))
        ]
        mixed = layers.attention(*heads, v(x).reshape("v.heads", (2, 5, 2, 4)), "attention", causal=True)
        return layers.gated(mixed.reshape("merge", (2, 5, 16)), up(x), "gated")

    x, weights = drawn((2, 5, 6), (2, 5, 16))
    model = Applied(forward, q=q, k=k, v=v, up=up, norm=norm)
    graph, gradients = traced(model, {"x": x})
    assert set(gradients) == {name for name, _ in model.parameters()}
    assert_gradients(graph, gradients, {"x": x, "weights": weights}, start(graph, model))


def test_dropout_and_embedding() -> None:
    table, dropout, again = Embedding(7, 40), Dropout(0.25, seed=3), Dropout(0.25, seed=3)
    model = Applied(lambda ids: again(dropout(table(ids))), table=table, dropout=dropout, again=again)
    ids = np.array([[1, 5], [5, 0]], np.int32)
    graph, _ = traced(model, {"ids": ids}, weigh=False)
    weight = drawn((7, 40))[0]
    values = run_graph(graph, [{"ids": ids}], {"table.weight": weight})
    once, twice = values["dropout.dropout"], values["again.dropout"]
    kept = once != 0
    np.testing.assert_allclose(once[kept], (weight[ids] / 0.75)[kept], rtol=1e-12)
    assert 0.6 < kept.mean() < 0.9
    both = twice != 0
    assert not (both & ~kept).any()
    assert 0.6 < both.sum() / kept.sum() < 0.9
    set_training(model, False)
    graph, _ = traced(model, {"ids": ids}, weigh=False)
    assert [op.kind for op in graph.ops] == ["gather"]


def test_convolution_with_groups_that_do_not_divide_is_refused() -> None:
    with pytest.raises(InputError, match="groups"):
        Conv2d(4, 6, (3, 3), groups=4)


def test_filters_start_with_the_variance_of_their_inputs() -> None:
    assert Conv2d(4, 6, (3, 3), groups=2).weight.init == f"normal({math.sqrt(2 / 18):.6f})"
