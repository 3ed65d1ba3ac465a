"""What ops mean on halves: in single precision, every result rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.sbp.tensor import DType

HALVES = [DType.BFLOAT16, DType.FLOAT16]
Array = Any


def run(kind: str, inputs: list[Array], outputs: list[Array], **more: Any) -> None:
    boxes = [tuple((0, size) for size in array.shape) for array in (*inputs, *outputs)]
    call = Call(
        np,
        more.pop("attrs", {}),
        tuple(inputs),
        tuple(outputs),
        (),
        tuple(boxes[: len(inputs)]),
        tuple(boxes[len(inputs) :]),
        Workspace(np),
    )
    for name, value in more.items():
        setattr(call, name, value)
    run_act(op_definition(kind), call)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_product_accumulates_in_float32_and_rounds_once(dtype: DType) -> None:
    """4096 ones added in bfloat16 one after another end at 256: the next one rounds away."""
    x, w = np.ones((3, 4096), dtype.numpy), np.ones((4096, 2), dtype.numpy)
    y = np.empty((3, 2), dtype.numpy)
    run("matmul", [x, w], [y])
    assert (y == 4096).all()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((3, 50), (50, 2)))
    run("matmul", [x, w], [y])
    assert np.array_equal(y, (x.astype(np.float32) @ w.astype(np.float32)).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", HALVES)
def test_a_composed_function_rounds_once(dtype: DType) -> None:
    x = np.linspace(-3, 3, 64).astype(dtype.numpy)
    narrow, wide = np.empty_like(x), np.empty(64, np.float32)
    run("gelu", [x], [narrow])
    run("gelu", [x.astype(np.float32)], [wide])
    assert np.array_equal(narrow, wide.astype(dtype.numpy))


def test_statistics_of_halves_are_in_float32() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 32)).astype(DType.BFLOAT16.numpy)
    gain, bias = (np.full(32, fill, DType.BFLOAT16.numpy) for fill in (1, 0))
    y, mean, rstd = np.empty_like(x), np.empty(4, np.float32), np.empty(4, np.float32)
    run("layer_norm", [x, gain, bias], [y, mean, rstd])
    np.testing.assert_allclose(mean, x.astype(np.float64).mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(rstd, 1 / x.astype(np.float64).std(axis=1), rtol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
def test_an_accumulator_of_halves_goes_on(dtype: DType) -> None:
    total = np.full(3, np.nan, dtype.numpy)
    for number in range(4):
        run("accumulate", [np.full(3, 0.5, dtype.numpy)], [total], first_of_piece=number == 0)
    assert (total == 2).all()


def test_what_is_too_large_becomes_infinite_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    x, y = np.full(2, 6e4, np.float16), np.empty(2, np.float16)
    run("scale", [x], [y], attrs={"factor": 2.0})
    assert np.isinf(y).all()
    assert not recwarn.list


def test_from_double_a_half_is_rounded_once() -> None:
    """1 + 2^-11 lies between two float16 and would go to the even one, 1; what float32 has no room for decides."""
    narrow = np.empty(1, np.float16)
    run("cast", [np.array([1 + 2.0**-11 + 2.0**-30])], [narrow], attrs={"dtype": "float16"})
    assert float(narrow[0]) == 1 + 2.0**-10
