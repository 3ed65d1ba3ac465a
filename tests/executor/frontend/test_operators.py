"""Every operator and method of tensors: traced it is the op that it names, on global tensors it is NumPy's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from executor.frontend.global_tensor import GlobalTensor, broadcast, from_numpy, partial_sum, placement, split
from executor.frontend.world import World
from strategy.base.errors import InputError
from strategy.nn.operators import Operators
from strategy.nn.tracer import Tracer
from strategy.sbp.tensor import DType, TensorSpec
from tests.executor.worlds import on_ranks

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """An expression on x[6, 5] (and y alike, w[5, 4]), what NumPy says of it, and the kinds that it takes."""

    kinds: tuple[str, ...]
    code: Callable[[Any, Any, Any], Any]
    wanted: Callable[[Array, Array, Array], Array]


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def swapped(x: Array) -> Array:
    return np.swapaxes(x.reshape(2, 3, 5), 0, 1)


CASES = (
    Case(("add",), lambda x, y, w: x + y, lambda x, y, w: x + y),
    Case(("shift",), lambda x, y, w: x + 2, lambda x, y, w: x + 2),
    Case(("shift",), lambda x, y, w: 2.5 + x, lambda x, y, w: x + 2.5),
    Case(("sub",), lambda x, y, w: x - y, lambda x, y, w: x - y),
    Case(("shift",), lambda x, y, w: x - 2, lambda x, y, w: x - 2),
    Case(("neg", "shift"), lambda x, y, w: 2 - x, lambda x, y, w: 2 - x),
    Case(("mul",), lambda x, y, w: x * y, lambda x, y, w: x * y),
    Case(("scale",), lambda x, y, w: x * 3, lambda x, y, w: x * 3),
    Case(("scale",), lambda x, y, w: 0.5 * x, lambda x, y, w: x * 0.5),
    Case(("div",), lambda x, y, w: x / y, lambda x, y, w: x / y),
    Case(("scale",), lambda x, y, w: x / 4, lambda x, y, w: x / 4),
    Case(("neg",), lambda x, y, w: -x, lambda x, y, w: -x),
    Case(("matmul",), lambda x, y, w: x @ w, lambda x, y, w: x @ w),
    Case(("matmul",), lambda x, y, w: x.matmul(w), lambda x, y, w: x @ w),
    Case(("maximum",), lambda x, y, w: x.maximum(y), lambda x, y, w: np.maximum(x, y)),
    Case(("minimum",), lambda x, y, w: x.minimum(y), lambda x, y, w: np.minimum(x, y)),
    Case(("reduce_sum",), lambda x, y, w: x.sum(), lambda x, y, w: x.sum()),
    Case(("reduce_sum",), lambda x, y, w: x.sum(-1), lambda x, y, w: x.sum(-1)),
    Case(("reduce_mean",), lambda x, y, w: x.mean((0, 1)), lambda x, y, w: x.mean()),
    Case(("reduce_max",), lambda x, y, w: x.max(0, keepdims=True), lambda x, y, w: x.max(0, keepdims=True)),
    Case(("reduce_min",), lambda x, y, w: x.min(1), lambda x, y, w: x.min(1)),
    Case(("exp",), lambda x, y, w: x.exp(), lambda x, y, w: np.exp(x)),
    Case(("square", "log"), lambda x, y, w: x.square().log(), lambda x, y, w: np.log(x * x)),
    Case(("abs", "sqrt"), lambda x, y, w: x.abs().sqrt(), lambda x, y, w: np.sqrt(np.abs(x))),
    Case(("relu",), lambda x, y, w: x.relu(), lambda x, y, w: np.maximum(x, 0)),
    Case(("gelu",), lambda x, y, w: x.gelu(), lambda x, y, w: gelu(x)),
    Case(("tanh",), lambda x, y, w: x.tanh(), lambda x, y, w: np.tanh(x)),
    Case(("sigmoid",), lambda x, y, w: x.sigmoid(), lambda x, y, w: 1 / (1 + np.exp(-x))),
    Case(("silu",), lambda x, y, w: x.silu(), lambda x, y, w: x / (1 + np.exp(-x))),
    Case(("softmax",), lambda x, y, w: x.softmax(), lambda x, y, w: softmax(x)),
    Case(("log_softmax",), lambda x, y, w: x.log_softmax(), lambda x, y, w: np.log(softmax(x))),
    Case(("cast",), lambda x, y, w: x.cast(DType.FLOAT32), lambda x, y, w: x.astype(np.float32)),
    Case(("reshape",), lambda x, y, w: x.reshape((3, -1)), lambda x, y, w: x.reshape(3, 10)),
    Case(("transpose",), lambda x, y, w: x.transpose((1, 0)), lambda x, y, w: x.T),
    Case(("transpose",), lambda x, y, w: x.T, lambda x, y, w: x.T),
    Case(("reshape", "transpose"), lambda x, y, w: x.reshape(2, 3, 5).transpose(0, 1), lambda x, y, w: swapped(x)),
    Case(("square",), lambda x, y, w: x**2, lambda x, y, w: x**2),
    Case(("pow",), lambda x, y, w: x**3, lambda x, y, w: x**3),
    Case(("abs", "pow"), lambda x, y, w: x.abs() ** -0.5, lambda x, y, w: np.abs(x) ** -0.5),
    Case(("pow", "scale"), lambda x, y, w: 2 / x, lambda x, y, w: 2 / x),
    Case(("equal",), lambda x, y, w: x == y, lambda x, y, w: (x == y).astype(np.int32)),
    Case(("full_like", "greater"), lambda x, y, w: x > 0.5, lambda x, y, w: (x > 0.5).astype(np.int32)),
    Case(("greater_equal",), lambda x, y, w: x <= y, lambda x, y, w: (x <= y).astype(np.int32)),
    Case(("greater", "full_like", "where"), lambda x, y, w: (x > y).where(x, 0), lambda x, y, w: np.where(x > y, x, 0)),
    Case(("full_like",), lambda x, y, w: x.full_like(3), lambda x, y, w: np.full_like(x, 3)),
    Case(("tanh",), lambda x, y, w: x.apply("bend", "tanh"), lambda x, y, w: np.tanh(x)),
    Case(("slice",), lambda x, y, w: x[1:4, :-1], lambda x, y, w: x[1:4, :-1]),
    Case(("slice",), lambda x, y, w: x[2:], lambda x, y, w: x[2:]),
    Case(
        ("reshape", "batch_matmul"),
        lambda x, y, w: x.reshape((2, 3, 5)) @ y.reshape((2, 5, 3)),
        lambda x, y, w: x.reshape(2, 3, 5) @ y.reshape(2, 5, 3),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case.kinds))
def test_an_expression_is_its_ops_and_numpys_answer(case: Case) -> None:
    tracer = Tracer()
    specs = {"x": (6, 5), "y": (6, 5), "w": (5, 4)}
    traced = case.code(*(tracer.input(name, TensorSpec(shape, DType.FLOAT64)) for name, shape in specs.items()))
    tracer.check()
    assert tuple(dict.fromkeys(op.kind for op in tracer.graph.ops)) == case.kinds
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in specs.values()]
    wanted = np.asarray(case.wanted(*arrays))
    assert traced.shape == wanted.shape

    def code(world: World) -> list[Array]:
        found = []
        for sbp in (split(0), split(1), broadcast, partial_sum):
            result = case.code(*(from_numpy(a, placement=placement([0, 1, 2]), sbp=sbp) for a in arrays))
            assert isinstance(result, GlobalTensor)
            found.append(result.numpy())
        return found

    for found in on_ranks(3, code)[0]:
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6 if wanted.dtype == np.float32 else 1e-12, atol=1e-12)


def test_every_method_is_tried() -> None:
    names = {
        name for name in vars(Operators) if not name.startswith("_") and name not in ("shape", "operate", "lifted")
    }
    written = " ".join(str(name) for case in CASES for name in case.code.__code__.co_names)
    assert {name for name in names if name not in written.split()} == set()


@pytest.mark.parametrize("index", [0, slice(0, 4, 2), (slice(1), slice(1), slice(1)), None, -1])
def test_an_index_is_slices_without_a_step(index: Any) -> None:
    with pytest.raises(InputError, match="not an index"):
        from_numpy(np.ones((4, 4)), placement=placement([0]), sbp=broadcast)[index]
