"""Element-wise ops, reductions, indexing and shape ops against NumPy, and what broadcasting does to gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.binary import broadcast_shape
from strategy.graph.ops.shape import dim_groups
from strategy.sbp.tensor import DType, Shape, TensorSpec
from tests.support.oracle import Array

X, Y = np.random.default_rng(0).uniform(0.1, 2.0, (2, 4, 3, 5))
INDICES = np.array([[3, 0, 3]], np.int32)


def run(kind: str, inputs: list[Array], attrs: Attrs | None = None) -> list[Array]:
    definition = op_definition(kind)
    specs = [TensorSpec(x.shape, DType(str(x.dtype))) for x in inputs]
    outputs = [np.full(s.shape, 77, str(s.dtype)) for s in definition.infer(specs, (), attrs or {})]
    boxes = [tuple(tuple((0, n) for n in a.shape) for a in arrays) for arrays in (inputs, outputs)]
    arrays = tuple(inputs), tuple(outputs)
    definition.run(Call(np, attrs or {}, *arrays, (), boxes[0], boxes[1], Workspace(np)))
    return outputs


MEANINGS: dict[str, tuple[list[Array], Attrs, Callable[[], Any]]] = {
    "relu": ([X - 1], {}, lambda: np.maximum(X - 1, 0)),
    "sigmoid": ([X], {}, lambda: 1 / (1 + np.exp(-X))),
    "silu": ([X], {}, lambda: X / (1 + np.exp(-X))),
    "rsqrt": ([X], {}, lambda: X**-0.5),
    "scale": ([X], {"factor": -0.5}, lambda: X / -2),
    "cast": ([X], {"dtype": "int32"}, lambda: X.astype(np.int32)),
    "add": ([X, Y[0]], {}, lambda: X + Y[0]),
    "sub": ([X[:, :1], Y[0]], {}, lambda: X[:, :1] - Y[0]),
    "div": ([X[0, 0], Y], {}, lambda: X[0, 0] / Y),
    "maximum": ([X, Y], {}, lambda: np.maximum(X, Y)),
    "greater_equal": ([X, Y], {}, lambda: X >= Y),
    "where": ([INDICES[0, :, None], X[0], Y[0]], {}, lambda: np.where(INDICES[0, :, None], X[0], Y[0])),
    "reduce_sum": ([X], {"axes": (0, 1), "keepdims": 0}, lambda: X.sum((0, 1))),
    "reduce_mean": ([X], {"axes": (2, 0), "keepdims": 1}, lambda: X.mean((0, 2), keepdims=True)),
    "reduce_max": ([X], {"axes": (1,), "keepdims": 0}, lambda: X.max(1)),
    "reduce_min": ([X], {"axes": (0, 1, 2), "keepdims": 0}, lambda: X.min()),
    "softmax": ([X], {}, lambda: np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    "log_softmax": ([X], {}, lambda: X - np.log(np.exp(X).sum(-1, keepdims=True))),
    "gather": ([X, INDICES], {"axis": 0}, lambda: X[INDICES]),
    "pick": ([np.arange(12.0).reshape(3, 4), np.array([[3], [0], [2]])], {}, lambda: np.array([[3.0], [4.0], [10.0]])),
    "one_hot": ([INDICES], {"depth": 4}, lambda: np.eye(4)[INDICES]),
    "argmax": ([X], {}, lambda: X.argmax(-1)),
    "concat": ([X, Y, X], {"axis": 1}, lambda: np.concatenate([X, Y, X], 1)),
    "slice": ([X], {"begin": (1, 0, 2), "end": (3, 3, 5)}, lambda: X[1:3, :, 2:]),
    "slice_grad": ([X], {"begin": (1, 0, 2), "shape": (6, 3, 7)}, lambda: np.pad(X, ((1, 1), (0, 0), (2, 0)))),
    "expand": ([X[:, :1]], {"shape": (2, 4, 3, 5)}, lambda: np.broadcast_to(X[:, :1], (2, 4, 3, 5))),
    "full_like": ([X], {"value": 2.5}, lambda: np.full(X.shape, 2.5)),
}


@pytest.mark.parametrize("kind", MEANINGS)
def test_an_op_means_what_numpy_means(kind: str) -> None:
    inputs, attrs, wanted = MEANINGS[kind]
    (found,) = run(kind, inputs, attrs)
    np.testing.assert_allclose(found, wanted(), rtol=1e-12)


def test_gather_along_an_inner_dim_and_back() -> None:
    (found,) = run("gather", [X, INDICES % 3], {"axis": 1})
    np.testing.assert_array_equal(found, X[:, INDICES % 3])
    (back,) = run("gather_grad", [INDICES % 3, np.ones_like(found)], {"axis": 1, "rows": 3})
    np.testing.assert_array_equal(back[0, :, 0], [3, 0, 0])


def test_repeated_indices_add_up() -> None:
    ids = np.array([[4, 1], [1, 1]], np.int32)
    (found,) = run("gather_grad", [ids, np.ones((2, 2, 2))], {"axis": 0, "rows": 5})
    np.testing.assert_array_equal(found, [[0, 0], [3, 3], [0, 0], [0, 0], [1, 1]])


def test_top_k_sorts_and_breaks_ties_by_position() -> None:
    values, indices = run("top_k", [np.array([[1.0, 3.0, 2.0, 3.0]])], {"k": 3})
    np.testing.assert_array_equal(values, [[3, 3, 2]])
    np.testing.assert_array_equal(indices, [[1, 3, 2]])
    (back,) = run("top_k_grad", [indices, np.array([[5.0, 6.0, 7.0]])], {"size": 4})
    np.testing.assert_array_equal(back, [[0, 5, 7, 6]])


def test_sigmoid_and_silu_overflow_nowhere() -> None:
    with np.errstate(all="raise"):
        for kind, wanted in (("sigmoid", [0, 0.5, 1]), ("silu", [0, 0, 1e4])):
            np.testing.assert_allclose(run(kind, [np.array([-1e4, 0.0, 1e4])])[0], wanted, atol=1e-12)


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [(((4, 1, 5), (6, 5)), (4, 6, 5)), (((), (3,)), (3,)), (((2,), (3,)), None), (((2, 3), (2, 1)), (2, 3))],
)
def test_broadcasting_is_that_of_numpy(shapes: tuple[Shape, Shape], wanted: Shape | None) -> None:
    assert broadcast_shape(shapes) == wanted
    if wanted is not None:
        assert np.broadcast_shapes(*shapes) == wanted


@pytest.mark.parametrize(
    ("source", "target", "groups"),
    [
        ((2, 6, 4), (2, 3, 2, 4), [(0, 0), (1, 1), (2, 3)]),
        ((1, 6), (2, 1, 3), [(1, 0)]),
        ((3, 4), (1, 3, 1, 4), [(0, 1), (1, 3)]),
        ((4, 6), (6, 4), [(0, 0)]),
        ((1, 1), (1,), []),
    ],
)
def test_dims_of_one_do_not_count_in_the_groups_of_a_reshape(
    source: Shape, target: Shape, groups: list[tuple[int, int]]
) -> None:
    assert list(dim_groups(source, target)) == groups
