"""Gradients against finite differences in double precision: of every forward op, and of a whole small GPT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import GraphError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Phase, Role, Value
from strategy.graph.ops import REGISTRY
from strategy.models.gpt import GptConfig
from strategy.passes.autodiff import differentiate
from strategy.passes.training import Training, training_graph
from strategy.sbp.tensor import DType, Rate, TensorSpec
from tests.support.reference import random_batch, run_graph, start_variables

Array = npt.NDArray[Any]
RELATIVE = 1e-4
CONFIG = GptConfig(layers=2, width=8, heads=2, sequence=5, vocabulary=11)
TRAINING = Training(global_batch=2, dtype=DType.FLOAT64)


def numeric(function: Callable[[Array], float], at: Array, direction: Array, epsilon: float = 1e-6) -> float:
    """Central difference of `function` along `direction`."""
    return (function(at + epsilon * direction) - function(at - epsilon * direction)) / (2 * epsilon)


def test_every_forward_op_has_a_gradient_or_a_reason() -> None:
    """What has none appears in backward passes and updates alone."""
    graph = training_graph(CONFIG, TRAINING)
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            assert REGISTRY[op.kind].gradient is not None, op.kind


def forward(graph: Graph) -> Graph:
    ops = tuple(op for op in graph.ops if op.phase is Phase.FORWARD)
    written = {name for op in ops for name in op.outputs}
    return Graph({n: v for n, v in graph.values.items() if n in written or v.role is not Role.COMPUTED}, ops)


def test_gradient_of_a_whole_gpt_against_finite_differences() -> None:
    graph = training_graph(CONFIG, TRAINING)
    rng = np.random.default_rng(11)
    variables = start_variables(graph, rng)
    for name, array in variables.items():
        if not name.endswith((":m", ":v")):
            array += 0.2 * rng.standard_normal(array.shape)
    batch = random_batch(graph, CONFIG.vocabulary, rng)
    point = {name: array.copy() for name, array in variables.items()}
    values = run_graph(graph, [batch], variables)
    loss_only = forward(graph)

    def loss(name: str, at: Array) -> float:
        return float(run_graph(loss_only, [batch], {**point, name: at})[graph.loss])

    compared = 0
    for op in graph.ops:
        if op.kind != "adamw":
            continue
        name, gradient = op.updates[0], values[op.inputs[0]]
        cells = [np.unravel_index(i, gradient.shape) for i in rng.integers(0, gradient.size, 4)]
        directions = [np.asarray(rng.standard_normal(gradient.shape)) for _ in range(2)]
        for cell in cells:
            directions.append(np.zeros(gradient.shape))
            directions[-1][cell] = 1
        for direction in directions:
            wanted = numeric(lambda at, name=name: loss(name, at), point[name], direction)  # type: ignore[misc]
            assert float((gradient * direction).sum()) == pytest.approx(wanted, rel=RELATIVE, abs=1e-6), name
            compared += 1
    assert compared == 6 * len([n for n in variables if not n.endswith((":m", ":v"))])


def a_parameter_chain(builder: GraphBuilder) -> None:
    for name in ("w", "b"):
        builder.declare(Value(name, TensorSpec((3, 3), DType.FLOAT64), Rate.STEP, Role.VARIABLE, "ones"))
    builder.declare(Value("x", TensorSpec((2, 3), DType.FLOAT64), Rate.MICRO_BATCH, Role.INPUT))
    builder.declare(Value("labels", TensorSpec((2,), DType.INT32), Rate.MICRO_BATCH, Role.INPUT))


def add_loss(builder: GraphBuilder, logits: str) -> None:
    """Softmax cross-entropy of logits [rows, classes], as `strategy.nn.losses` composes it."""
    builder.add("top", "reduce_max", (logits,), attrs={"axes": (1,), "keepdims": 0})
    builder.add("total", "sum_exp", (logits, "top"))
    builder.add("log", "log", ("total",))
    builder.add("lse", "add", ("log", "top"))
    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "classes": builder.spec(logits).shape[1]}
    builder.add("loss", "cross_entropy", (logits, "labels", "lse"), labels=("count",), attrs=attrs)


def test_a_value_with_several_consumers_adds_their_gradients() -> None:
    """x w, used twice by a residual and twice through one weight."""
    builder = GraphBuilder()
    a_parameter_chain(builder)
    builder.add("h", "matmul", ("x", "w"))
    builder.add("g", "gelu", ("h",))
    builder.add("r", "add", ("h", "g"))
    builder.add("y", "matmul", ("r", "w"))
    add_loss(builder, "y")
    gradients = differentiate(builder, "loss")
    assert list(gradients) == ["w"]
    graph = builder.build(loss="loss")
    rng = np.random.default_rng(1)
    batch: dict[str, Array] = {"x": rng.standard_normal((2, 3)), "labels": np.array([0, 2], np.int32)}
    w = rng.standard_normal((3, 3))
    values = run_graph(graph, [batch], {"w": w, "b": w})
    found = sum(values[term] for term in gradients["w"])
    direction = rng.standard_normal((3, 3))
    wanted = numeric(lambda at: float(run_graph(graph, [batch], {"w": at, "b": w})["loss"]), w, direction)
    assert float((found * direction).sum()) == pytest.approx(wanted, rel=RELATIVE)


def test_a_parameter_that_the_loss_does_not_need_has_no_gradient() -> None:
    builder = GraphBuilder()
    a_parameter_chain(builder)
    builder.add("y", "matmul", ("x", "w"))
    builder.add("unused", "matmul", ("x", "b"))
    add_loss(builder, "y")
    assert list(differentiate(builder, "loss")) == ["w"]


def test_inputs_get_no_gradient() -> None:
    builder = GraphBuilder()
    a_parameter_chain(builder)
    builder.add("y", "matmul", ("x", "w"))
    add_loss(builder, "y")
    differentiate(builder, "loss")
    assert [op.kind for op in builder.ops if op.phase is Phase.BACKWARD] == ["cross_entropy_grad", "matmul_tn"]


def test_an_op_without_gradient_on_the_way_to_the_loss_is_named() -> None:
    builder = GraphBuilder()
    a_parameter_chain(builder)
    builder.add("y", "matmul", ("x", "w"))
    builder.add("both", "gelu_grad", ("y", "y"))
    add_loss(builder, "both")
    with pytest.raises(GraphError, match="op both: gelu_grad has no gradient"):
        differentiate(builder, "loss")


def test_a_loss_that_no_loss_op_writes_is_refused() -> None:
    builder = GraphBuilder()
    a_parameter_chain(builder)
    builder.add("y", "matmul", ("x", "w"))
    with pytest.raises(GraphError, match=r"y.*loss"):
        differentiate(builder, "y")


def test_a_gradient_through_a_second_output_is_refused_rather_than_lost() -> None:
    """`lse` and the statistics of a norm are kept for backward passes; nothing differentiates through them."""
    builder = GraphBuilder()
    a_parameter_chain(builder)
    for name in ("gain", "bias"):
        builder.declare(Value(name, TensorSpec((3,), DType.FLOAT64), Rate.STEP, Role.VARIABLE, "ones"))
    builder.add("h", "matmul", ("x", "w"))
    builder.add("norm", "layer_norm", ("h", "gain", "bias"), labels=("mean", "rstd"))
    builder.add("column", "reshape", ("norm.mean",), attrs={"shape": (2, 1)})
    builder.declare(Value("row", TensorSpec((1, 3), DType.FLOAT64), Rate.STEP, Role.VARIABLE, "ones"))
    builder.add("y", "matmul", ("column", "row"))
    add_loss(builder, "y")
    with pytest.raises(GraphError, match=r"op norm: .*norm\.mean"):
        differentiate(builder, "loss")


def test_backward_ops_stay_in_the_layer_of_their_forward_op() -> None:
    graph = training_graph(CONFIG, TRAINING)
    for op in graph.ops:
        if op.phase is Phase.BACKWARD and ".grad" not in op.name:
            origin = graph.by_name.get(op.name.split(":")[0])
            if origin is not None:
                assert op.layer == origin.layer, op.name


def test_one_gradient_crosses_from_layer_to_layer() -> None:
    """The gradients of a layer's input are added in the layer that reads it; a pipeline sends their sum."""
    graph = training_graph(GptConfig(3, 8, 2, 5, 11), TRAINING)
    for upper in range(1, 3):
        crossing = {
            name
            for op in graph.ops
            if op.phase is Phase.BACKWARD and op.layer == upper - 1
            for name in op.inputs
            if name in graph.producer and graph.producer[name].layer == upper
        }
        assert len(crossing) == 1, crossing
