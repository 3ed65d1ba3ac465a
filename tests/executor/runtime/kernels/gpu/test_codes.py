"""Codes of eight bits: their kernels on the host against ml_dtypes, to the bit; and products of codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.runtime.kernels.gpu.cublaslt import ProductPlans
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.products import MatrixProduct
from executor.runtime.kernels.gpu.program import ELEMENTS, all_parameters
from executor.runtime.kernels.gpu.table import PRODUCTS_OF_CODES, launches_of, work_of
from strategy.base.errors import InputError
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.sbp.tensor import DType, TensorSpec
from tests.executor.runtime.kernels.gpu.test_launches import fits
from tests.executor.runtime.kernels.gpu.test_products import aligned
from tests.support.cuda_on_host.device import build
from tests.support.cuda_on_host.device import run as run_launches
from tests.support.cuda_on_host.host_cublaslt import HostCublasLt
from tests.support.cuda_on_host.trials import TOLERANCES, PoisonedWorkspace, error_per_row
from tests.support.long_parameters import long_but

GOLDEN = Path(__file__).parent / "codes.txt"
E4M3, E5M2 = DType.FLOAT8_E4M3, DType.FLOAT8_E5M2
STREAM = 7


def call_of(kind: str, inputs: tuple[Array, ...], **attrs: Any) -> Call:
    """An act whose results and scratch are poisoned; those behind an array begin where vectors do."""
    specs = [TensorSpec(array.shape, _dtype_of(array)) for array in inputs]
    made = [aligned(spec.shape, spec.dtype.numpy) for spec in op_definition(kind).infer(specs, (), attrs)]
    for array in made:
        array.reshape(-1).view(np.uint8)[...] = 0xFF
    boxes = [tuple((0, size) for size in array.shape) for array in (*inputs, *made)]
    halves = tuple(boxes[: len(inputs)]), tuple(boxes[len(inputs) :])
    return Call(np, attrs, inputs, tuple(made), (), *halves, PoisonedWorkspace(np))


def _dtype_of(array: Array) -> DType:
    """Bytes are those of two codes."""
    return DType.FLOAT4_E2M1_X2 if array.dtype == "uint8" else DType(str(array.dtype))


def meant(kind: str, call: Call) -> list[Array]:
    """What the op's own code gives."""
    outputs = tuple(np.zeros_like(array) for array in call.outputs)
    run_act(op_definition(kind), replace(call, outputs=outputs, workspace=Workspace(np)))
    return list(outputs)


def at_vectors(array: Array) -> Array:
    found = aligned(array.shape, array.dtype)
    found[...] = array
    return found


def figures(dtype: DType, element: DType) -> Array:
    """Every value and every tie between two; what is too large, and what is too small, of both signs."""
    values = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    size = np.sort(values[np.isfinite(values)])
    beyond = np.float32([1e5, -1e5, 460, 6e4, 1e-9, -1e-9, 0.0, -0.0])
    with np.errstate(over="ignore"):
        return np.concatenate([size, (size[1:] + size[:-1]) / 2, beyond]).astype(element.numpy)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("element", ELEMENTS)
def test_codes_are_those_of_the_op_to_the_bit(element: DType, dtype: DType) -> None:
    """Scales of one, of an odd figure, and of none; one block and several; vectors and single elements."""
    program, rng = build(element), np.random.default_rng(6)
    largest = 448.0 if dtype is E4M3 else 57344.0
    wide = at_vectors((3 * rng.standard_normal(20_001)).astype(element.numpy))
    calls = [
        call_of("quantize", (x, np.array(amax, np.float32)), dtype=str(dtype), observes=observes)
        for x, amax, observes in (
            (figures(dtype, element), largest, 0),
            (figures(dtype, element)[1:], 3.7, 1),
            (wide, 11.0, 0),
            (wide, 9.25, 1),
            (wide[:77], 0.0, 1),
            (wide[:5], -np.inf, 1),
            (wide[:5], np.inf, 0),
        )
    ]
    right = [meant("quantize", call) for call in calls]
    launches = [launch for call in calls for launch in launches_of("quantize", call) or ()]
    run_launches(program, launches)
    assert {one.kernel for one in launches} == {f"quantize_{'e4m3' if dtype is E4M3 else 'e5m2'}", "largest_term"}
    for call, good in zip(calls, right, strict=True):
        for found, wanted in zip(call.outputs, good, strict=True):
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("element", ELEMENTS)
def test_what_is_no_number_stays_none(element: DType) -> None:
    """A figure among others; an amax. It is seen, and is in the largest magnitude, by one block and by several."""
    x = np.ones(20_000, element.numpy)
    x[[5, 19_000]] = np.nan, -np.inf
    one = np.array(1, np.float32)
    calls = [
        call_of("quantize", (x, one), dtype=str(E4M3), observes=1),
        call_of("quantize", (x[:9], np.array(np.nan, np.float32)), dtype=str(E5M2), observes=1),
        call_of("quantize", (x[10:], one), dtype=str(E5M2), observes=1),
        call_of("amax", (x,)),
        call_of("amax", (x[10:],)),
    ]
    kinds = ["quantize"] * 3 + ["amax"] * 2
    launches = [one for pair in zip(kinds, calls, strict=True) for one in launches_of(*pair) or ()]
    run_launches(build(element), launches)
    codes, scale, seen = calls[0].outputs
    numbers = codes.astype(np.float32)
    assert np.isnan(numbers[5])
    assert np.isfinite(numbers[6:]).all()
    assert numbers[19_000] == -448
    assert float(scale) == np.float32(1) / np.float32(448)
    assert np.isnan(seen)
    assert np.isnan(calls[1].outputs[0].astype(np.float32)).all()
    assert np.isnan(calls[1].outputs[1])
    assert (calls[2].outputs[2], np.isnan(calls[3].outputs[0]), calls[4].outputs[0]) == (np.inf, True, np.inf)


def products(element: DType, *, odd: bool) -> Iterator[tuple[str, Call]]:
    """Of both kinds of codes; rows of several dims; sizes that the library takes, and others."""
    rng = np.random.default_rng(8)
    m, k, n = (2, 37), 70, 101
    if not odd:
        m, k, n = (2, 40), 96, 64
    shapes = {"": ((*m, k), (k, n)), "_nt": ((*m, n), (k, n)), "_tn": ((*m, k), (*m, n))}
    for suffix, pair in shapes.items():
        for dtypes in ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2)):
            codes = [at_vectors(rng.standard_normal(s).astype(d.numpy)) for s, d in zip(pair, dtypes, strict=True)]
            scales = [np.array(figure, np.float32) for figure in (0.5, 0.3)]
            kind = f"scaled_matmul{suffix}"
            yield kind, call_of(kind, (*codes, *scales), dtype=str(element))


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("element", long_but(ELEMENTS, 1))
def test_products_of_codes_mean_what_the_op_means(element: DType, *, odd: bool) -> None:
    """The library's stand-in takes what the library takes: k last in both operands, multiples of 16, not E5M2 twice."""
    program, plans, seen = build(element), ProductPlans(HostCublasLt()), set()
    for kind, call in products(element, odd=odd):
        x, y = (codes.astype(np.float64).reshape(-1, codes.shape[-1]) for codes in call.inputs[:2])
        right = (x.T if kind.endswith("tn") else x) @ (y.T if kind.endswith("nt") else y)
        for one in work_of(kind, call) or ():
            seen.add(getattr(one, "kernel", "product"))
            if isinstance(one, MatrixProduct):
                plans.bind(one, Workspace(np))(STREAM)
            else:
                run_launches(program, [one])
        scale = float(call.inputs[2]) * float(call.inputs[3])
        assert error_per_row(call.outputs[0].reshape(right.shape), scale * right) <= TOLERANCES[element]
    assert seen == {"product", "arrange_codes", *(["copy_pitched"] if odd else [])}
    assert {kind for kind in PRODUCTS_OF_CODES if "block" not in kind} == {
        kind for kind, _ in products(element, odd=odd)
    }


def test_arguments_are_what_parameters_take() -> None:
    known = all_parameters()
    for launch in _launches(DType.FLOAT16):
        types = known[launch.kernel]
        assert len(types) == len(launch.arguments)
        given = [one.view(np.uint8) if _is_code(one) else one for one in launch.arguments]
        wrong = [p for a, p in zip(given, types, strict=True) if not fits(a, p, launch.element)]
        assert wrong == [], launch.kernel


def _is_code(argument: object) -> bool:
    return isinstance(argument, np.ndarray) and argument.dtype.itemsize == 1


def _launches(element: DType) -> Iterator[Launch]:
    x, amax = np.zeros(20_000, element.numpy), np.array(2, np.float32)
    for dtype in (E4M3, E5M2):
        call = call_of("quantize", (x, amax), dtype=str(dtype), observes=1)
        yield from launches_of("quantize", call) or ()
    for odd in (False, True):
        for kind, call in products(element, odd=odd):
            yield from (one for one in work_of(kind, call) or () if isinstance(one, Launch))


def test_what_is_asked_of_the_library_is_as_recorded() -> None:
    """Write the file anew by running this module."""
    assert recorded() == GOLDEN.read_text()


def recorded() -> str:
    lines = []
    for kind, call in products(DType.BFLOAT16, odd=False):
        library = HostCublasLt()
        for one in work_of(kind, replace(call, workspace=_AtVectors(np))) or ():
            if isinstance(one, MatrixProduct):
                ProductPlans(library).bind(one, Workspace(np))(STREAM)
        lines += [f"{kind}: {line}" for line in library.calls]
    return "\n".join(lines) + "\n"


class _AtVectors(Workspace):
    """Scratch that begins at multiples of 256 bytes."""

    def get(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> Array:  # type: ignore[override]
        """See `Workspace`."""
        return aligned(shape, np.dtype(dtype))


def test_what_the_library_has_no_product_for_is_refused() -> None:
    a, b, out = (np.zeros(shape, E4M3.numpy) for shape in ((16, 32), (48, 32), (16, 48)))
    out = out.astype(np.float32)
    assert MatrixProduct(a, b, out, transpose_b=True).is_fp8
    for changed in ({"b": np.zeros((32, 48), E4M3.numpy), "transpose_b": False}, {"a": a[:9], "out": out[:9]}):
        with pytest.raises(InputError, match="no such product of codes"):
            MatrixProduct(**{"a": a, "b": b, "out": out, "transpose_b": True, **changed})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one of them at least in E4M3"):
        MatrixProduct(a.view(E5M2.numpy), b.view(E5M2.numpy), out, transpose_b=True)


def test_pieces_without_elements_are_left_to_the_array_module() -> None:
    x, amax = np.zeros((3, 16), np.float32), np.array(1, np.float32)
    codes = np.zeros((3, 16), E4M3.numpy), np.zeros((16, 16), E4M3.numpy)
    for kind, inputs, attrs in (
        ("amax", (x,), {}),
        ("quantize", (x, amax), {"dtype": str(E4M3), "observes": 0}),
        ("scaled_matmul", (*codes, amax, amax), {"dtype": "float32"}),
    ):
        call = call_of(kind, inputs, **attrs)
        assert work_of(kind, call) is not None
        few = tuple(array[:0] if array.shape[:1] == (3,) else array for array in call.outputs)
        assert work_of(kind, replace(call, inputs=(call.inputs[0][:0], *call.inputs[1:]), outputs=few)) is None


if __name__ == "__main__":
    GOLDEN.write_text(recorded())
