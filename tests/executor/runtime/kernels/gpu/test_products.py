"""Matrix products: which acts become which, what the library is asked for, and that it comes out; on the host."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.runtime.kernels.gpu import cublaslt
from executor.runtime.kernels.gpu.cublaslt import ProductPlans, import_cublaslt
from executor.runtime.kernels.gpu.products import Epilogue, MatrixProduct
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.table import PRODUCTS, work_of
from strategy.base.errors import EnvironmentLacks, InputError
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build
from tests.support.cuda_on_host.device import run as run_launches
from tests.support.cuda_on_host.host_cublaslt import HostCublasLt
from tests.support.cuda_on_host.signatures import checked_in, installed
from tests.support.cuda_on_host.trials import TOLERANCES, Trial, error_per_row, wanted
from tests.support.long_parameters import long_but

GOLDEN = Path(__file__).parent / "products.txt"
STREAM = 7


def trials(kind: str) -> Iterator[Trial]:
    rng = np.random.default_rng(5)
    for example in op_definition(kind).examples:
        yield Trial(kind, tuple(rng.standard_normal(spec.shape) for spec in example.inputs), attrs=example.attrs)


def run(product: MatrixProduct, library: HostCublasLt | None = None, *, tf32: bool = False) -> None:
    ProductPlans(library or HostCublasLt(), tf32=tf32).bind(product, Workspace(np))(STREAM)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("kind", PRODUCTS)
def test_products_mean_what_the_op_means(kind: str, element: DType) -> None:
    plans = ProductPlans(HostCublasLt())
    for trial in trials(kind):
        call = trial.call(element)
        (right,), work = wanted(call, kind), work_of(kind, call)
        assert work is not None
        for product in work:
            assert isinstance(product, MatrixProduct)
            plans.bind(product, Workspace(np))(STREAM)
        assert error_per_row(call.outputs[0], right) <= TOLERANCES[element]


PADDED = {
    "matmul": ((1100, 1101), (1101, 1103), ["a", "b"], ["out"]),
    "matmul_nt": ((1100, 1104), (1103, 1104), ["b"], ["out"]),
    "matmul_tn": ((1104, 1103), (1104, 1104), ["a"], []),
}
"""Shapes, and the operands that are copied before and after the product."""


@pytest.mark.parametrize(("kind", "element"), long_but(itertools.product(PADDED, ELEMENTS), 0, 4, 8))
def test_rows_of_odd_length_are_copied_to_longer_ones_where_that_pays(kind: str, element: DType) -> None:
    """Halves alone, and products of many FLOP; a scratch full of NaNs, which zeros take the place of."""
    *shapes, before, after = PADDED[kind]
    rng = np.random.default_rng(9)
    call = Trial(kind, tuple(rng.standard_normal(shape) for shape in shapes)).call(element)
    given = call.workspace.get
    (right,), plans = wanted(call, kind), ProductPlans(HostCublasLt())
    call.workspace.get = lambda *of: (found := given(*of), found.fill(np.nan))[0]  # type: ignore[method-assign]
    work = work_of(kind, call)
    assert work is not None
    copies = [*before, "product", *after] if element.is_half else ["product"]
    assert [getattr(one, "kernel", "product") for one in work] == [
        name if name == "product" else "copy_pitched" for name in copies
    ]
    for one in work:
        if isinstance(one, MatrixProduct):
            _, _, n, k = one.sizes
            assert not element.is_half or n % 8 == k % 8 == 0
            plans.bind(one, Workspace(np))(STREAM)
        else:
            run_launches(build(element), [one])
    assert error_per_row(call.outputs[0], right) <= TOLERANCES[element]


def test_a_product_of_few_flop_is_left_where_it_is() -> None:
    (work,) = work_of("matmul", Trial("matmul", (np.ones((9, 301)), np.ones((301, 303)))).call(DType.BFLOAT16)) or ()
    assert isinstance(work, MatrixProduct)


def test_what_is_asked_of_the_library_is_as_recorded() -> None:
    """Write the file anew by running this module."""
    assert recorded() == GOLDEN.read_text()


def recorded() -> str:
    lines = []
    for kind in PRODUCTS:
        for element in (DType.FLOAT32, DType.BFLOAT16):
            library = HostCublasLt()
            for trial in trials(kind):
                for product in work_of(kind, trial.call(element)) or ():
                    assert isinstance(product, MatrixProduct)
                    run(replace(product, **_aligned(product)), library)
            lines += [f"{kind}: {line}" for line in library.calls]
    for epilogue in Epilogue:
        library = HostCublasLt()
        run(_with_epilogue(epilogue, DType.BFLOAT16), library)
        lines += [f"{epilogue}: {line}" for line in library.calls]
    return "\n".join(lines) + "\n"


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Zeros at a multiple of 256 bytes, so that what is recorded does not depend on the allocator."""
    size = int(np.prod(shape)) * dtype.itemsize
    room = np.zeros(size + 256, np.uint8)
    first = -room.ctypes.data % 256
    return room[first : first + size].view(dtype).reshape(shape)


def _aligned(product: MatrixProduct) -> dict[str, Array]:
    arrays = {"a": product.a, "b": product.b, "out": product.out}
    return {name: aligned(array.shape, array.dtype) for name, array in arrays.items()}


def _with_epilogue(epilogue: Epilogue, element: DType) -> MatrixProduct:
    """x w or x^T dy with what follows; rows at multiples of 256 bytes."""
    rng, (m, n, k) = np.random.default_rng(2), (5, 16, 7)
    given = {"a": (m, k), "b": (k, n), "out": (m, n), "bias": (n,), "aux": (m, n)}
    arrays = {name: aligned(shape, element.numpy) for name, shape in given.items()}
    for array in arrays.values():
        array[...] = rng.standard_normal(array.shape)
    arrays["out"][...] = np.nan
    bias = arrays["bias"] if epilogue.has_bias else None
    aux = arrays["aux"] if epilogue.has_aux else None
    return MatrixProduct(arrays["a"], arrays["b"], arrays["out"], epilogue=epilogue, bias=bias, aux=aux)


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("epilogue", Epilogue)
def test_what_follows_a_product(epilogue: Epilogue, element: DType) -> None:
    product = _with_epilogue(epilogue, element)
    a, b, bias, aux = (
        None if array is None else array.astype(np.float64)
        for array in (product.a, product.b, product.bias, product.aux)
    )
    run(product)
    right = a @ b
    if epilogue in (Epilogue.BIAS, Epilogue.GELU_OF_BIAS):
        right = right + bias
    if epilogue is Epilogue.GELU_OF_BIAS:
        assert product.aux is not None
        assert error_per_row(product.aux, right) <= TOLERANCES[element]
        right = _gelu(right)
    if epilogue in (Epilogue.GELU_SLOPE, Epilogue.GELU_SLOPE_AND_SUM):
        right = right * (_gelu(aux + 1e-6) - _gelu(aux - 1e-6)) / 2e-6
    assert error_per_row(product.out, right) <= TOLERANCES[element]
    sums = {Epilogue.GELU_SLOPE_AND_SUM: right.sum(axis=0), Epilogue.SUM_OF_B: b.sum(axis=0)}
    if epilogue in sums:
        assert product.bias is not None
        assert error_per_row(product.bias, sums[epilogue]) <= TOLERANCES[element]


def test_tf32_is_a_choice_and_halves_have_none() -> None:
    for tf32, element, compute in (
        (False, DType.FLOAT32, "COMPUTE_32F "),
        (True, DType.FLOAT32, "COMPUTE_32F_FAST_TF32"),
        (True, DType.BFLOAT16, "COMPUTE_32F "),
    ):
        library = HostCublasLt()
        run(_with_epilogue(Epilogue.NONE, element), library, tf32=tf32)
        assert f"compute={compute}" in library.calls[0]


def test_a_product_is_planned_once_for_each_shape_and_alignment() -> None:
    library, room = HostCublasLt(), aligned((4096,), np.dtype(np.float32))
    plans = ProductPlans(library)

    def product(first: int, rows: int) -> MatrixProduct:
        a, b = room[first : first + rows * 8].reshape(rows, 8), room[1024:1088].reshape(8, 8)
        return MatrixProduct(a, b, room[2048 : 2048 + rows * 8].reshape(rows, 8))

    for first, rows in ((0, 4), (64, 4), (1, 4), (0, 5), (64, 5)):
        plans.bind(product(first, rows), Workspace(np))(STREAM)
    assert sum(call.startswith("plan") for call in library.calls) == 3
    assert [call for call in library.calls if call.startswith("matmul")] == [
        f"matmul by plan on stream {STREAM} with 4096 bytes of workspace"
    ] * 5
    assert [one.workspace_nbytes for one in plans.plans(product(0, 4), 8)] == [4096] * 3


def test_what_no_algorithm_takes_is_named() -> None:
    library = HostCublasLt()
    library.refuses = True
    with pytest.raises(EnvironmentLacks, match="m 5, n 16, k 7 in float32"):
        run(_with_epilogue(Epilogue.NONE, DType.FLOAT32), library)


def test_operands_that_do_not_compose_are_refused() -> None:
    square = np.zeros((4, 4), np.float32)
    with pytest.raises(InputError, match="do not compose"):
        MatrixProduct(square, np.zeros((5, 4), np.float32), square)
    with pytest.raises(InputError, match="lacks an operand"):
        MatrixProduct(square, square, square, epilogue=Epilogue.BIAS)


@pytest.mark.parametrize("shapes", [((0, 4), (4, 3)), ((3, 0), (0, 4))])
def test_empty_products_are_the_array_modules(shapes: tuple[tuple[int, int], ...]) -> None:
    a, b = (np.zeros(shape, np.float32) for shape in shapes)
    call = Call(np, {}, (a, b), (np.zeros((a.shape[0], b.shape[1]), np.float32),), (), (), (), Workspace(np))
    assert work_of("matmul", call) is None


def test_the_packages_are_as_the_stand_ins_know_them() -> None:
    """Names, arguments, figures and sizes; `python -m tests.support.cuda_on_host.signatures` writes the file anew."""
    try:
        found = installed()
    except ImportError as error:
        pytest.skip(f"nvmath-python and nvidia-cudnn-frontend are not installed: {error}")
    assert found == checked_in()


def test_figures_of_the_library_are_ours() -> None:
    known = checked_in()["types"]
    names = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF"}
    names |= {"float8_e4m3fn": "CUDA_R_8F_E4M3", "float8_e5m2": "CUDA_R_8F_E5M2"}
    assert {name: known["CudaDataType"][cuda] for name, cuda in names.items()} == cublaslt.CUDA_TYPES
    assert known["ComputeType"]["COMPUTE_32F"] == cublaslt.COMPUTE_32F
    assert known["ComputeType"]["COMPUTE_32F_FAST_TF32"] == cublaslt.COMPUTE_32F_FAST_TF32
    assert {str(epilogue) for epilogue in Epilogue} <= set(checked_in()["enums"]["Epilogue"])


def test_a_missing_library_ends_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nvmath.bindings", None)
    with pytest.raises(EnvironmentLacks, match=r"sbplan\[gpu\]"):
        import_cublaslt()


if __name__ == "__main__":
    GOLDEN.write_text(recorded())
