"""cuBLASLt through nvmath's bindings: products of our row-major arrays, planned once and run without an allocation.

The library reads matrices by columns. Read so, a row-major [r, c] is its transpose [c, r]; so each product is asked for
as out^T = b^T a^T, b first, and nothing is copied. A bias is then one figure per row, as the library has it.

Names of functions, attributes and their sizes are those of nvmath-python 1.0; cuBLAS 13, "Using the cuBLASLt API".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.runtime.kernels.gpu.launch import address_of
from executor.runtime.kernels.gpu.products import MatrixProduct
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Array
from strategy.graph.ops.scratch import Scratch

WORKSPACE_NBYTES = 32 * 2**20
"""That products may use, all the same ones: what NVIDIA advises for Hopper, and more than it does for others."""
CUDA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14, "float8_e4m3fn": 28, "float8_e5m2": 29}
"""Of cudaDataType: CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2."""
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
"""Of cublasComputeType: sums in float32, tensor cores for halves and less; and operands in float32 rounded to TF32."""
_TRANSPOSED = 1
_MOST_ALIGNMENT = 256
"""Beyond which alignment no algorithm asks for."""

Key = tuple[object, ...]


def import_cublaslt() -> Any:
    """The library.

    Raises:
        EnvironmentLacks: nvmath-python or cuBLAS is missing.
    """
    try:
        from nvmath.bindings import cublasLt
    except ImportError as error:
        message = f"matrix products need nvmath-python, which cannot be imported ({error}); install `sbplan[gpu]`"
        raise EnvironmentLacks(message) from error
    return cublasLt


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """What the library keeps of a product, but for addresses: descriptors, the algorithm, and its workspace."""

    description: int
    a: int
    b: int
    out: int
    algorithm: NDArray[np.void]
    workspace_nbytes: int


class ProductPlans:
    """Products on the current device, one plan for each shape, layout, dtype and alignment.

    Args:
        library: nvmath.bindings.cublasLt.
        tf32: whether operands in float32 may be rounded to TF32, of ten bits, which tensor cores take.
    """

    def __init__(self, library: Any, *, tf32: bool = False) -> None:
        self._library, self._tf32 = library, tf32
        self._handle = library.create()
        self._plans: dict[Key, ProductPlan] = {}
        self._one, self._zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def bind(self, product: MatrixProduct, scratch: Scratch, plan: ProductPlan | None = None) -> Callable[[int], None]:
        """What issues a product to a stream, by the stream's address; by the plan that the library expects most of."""
        made = self._plan(product) if plan is None else plan
        alpha, beta = self._one.ctypes.data, self._zero.ctypes.data
        first, second, out = (address_of(array) for array in (product.b, product.a, product.out))
        workspace, algorithm = address_of(self.workspace(scratch)), made.algorithm.ctypes.data
        matmul = self._library.matmul

        def issue(stream: int) -> None:
            self._point(made.description, product)
            operands = (alpha, first, made.b, second, made.a, beta, out, made.out, out, made.out)
            tail = (algorithm, workspace, made.workspace_nbytes, stream)
            matmul(self._handle, made.description, *operands, *tail)

        return issue

    def workspace(self, scratch: Scratch) -> Array:
        """What any product may use: plans are made for so much."""
        return scratch.get("cublaslt", (WORKSPACE_NBYTES,), "uint8")

    def plans(self, product: MatrixProduct, count: int) -> list[ProductPlan]:
        """Up to so many plans for a product, those first of which the library expects most; nothing is kept."""
        return self._plans_for(product, count)

    def _plan(self, product: MatrixProduct) -> ProductPlan:
        key = _key(product)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plans_for(product, 1)[0]
        return plan

    def _plans_for(self, product: MatrixProduct, count: int) -> list[ProductPlan]:
        library = self._library
        preference = library.matmul_preference_create()
        wanted = library.MatmulPreferenceAttribute
        limits = {wanted.MAX_WORKSPACE_BYTES: WORKSPACE_NBYTES}
        # The library's first operand is ours second; the matrix that it could add, it takes to be the result.
        for letter, array in zip("ABCD", (product.b, product.a, product.out, product.out), strict=True):
            limits[getattr(wanted, f"MIN_ALIGNMENT_{letter}_BYTES")] = _alignment(array)
        for attribute, value in limits.items():
            dtype = library.get_matmul_preference_attribute_dtype(attribute)
            _set(library.matmul_preference_set_attribute, preference, attribute, value, dtype)
        description = self._description(product)
        a, b, out = (self._layout(array) for array in (product.a, product.b, product.out))
        found = np.zeros(count, library.matmul_heuristic_result_dtype)
        number = np.zeros(1, np.int32)
        library.matmul_algo_get_heuristic(
            self._handle,
            description,
            b,
            a,
            out,
            out,
            preference,
            count,
            found.ctypes.data,
            number.ctypes.data,
        )
        library.matmul_preference_destroy(preference)
        if not number[0]:
            shape = "products {}, m {}, n {}, k {}".format(*product.sizes)
            raise EnvironmentLacks(f"cuBLASLt has no algorithm for {shape} in {product.a.dtype}, {product.epilogue}")
        return [
            ProductPlan(description, a, b, out, one["algo"].copy().reshape(1), int(one["workspace_size"]))
            for one in found[: number[0]]
        ]

    def _description(self, product: MatrixProduct) -> int:
        library, names = self._library, self._library.MatmulDescAttribute
        fast = self._tf32 and str(product.a.dtype) == "float32"
        description: int = library.matmul_desc_create(
            COMPUTE_32F_FAST_TF32 if fast else COMPUTE_32F, CUDA_TYPES["float32"]
        )
        flags = {names.TRANSA: product.transpose_b, names.TRANSB: product.transpose_a}
        for attribute, transposed in flags.items():
            if transposed:
                self._describe(description, attribute, _TRANSPOSED)
        self._describe(description, names.EPILOGUE, int(library.Epilogue[product.epilogue]))
        if product.aux is not None:
            self._describe(description, names.EPILOGUE_AUX_LD, product.aux.shape[-1])
        self._point(description, product)
        return description

    def _point(self, description: int, product: MatrixProduct) -> None:
        """Says where the operands are that the call itself does not name."""
        names = self._library.MatmulDescAttribute
        operands = {
            names.BIAS_POINTER: product.bias,
            names.EPILOGUE_AUX_POINTER: product.aux,
            names.A_SCALE_POINTER: product.scale_b,
            names.B_SCALE_POINTER: product.scale_a,
        }
        for attribute, array in operands.items():
            if array is not None:
                self._describe(description, attribute, address_of(array))

    def _describe(self, description: int, attribute: int, value: int) -> None:
        dtype = self._library.get_matmul_desc_attribute_dtype(attribute)
        _set(self._library.matmul_desc_set_attribute, description, attribute, value, dtype)

    def _layout(self, array: Array) -> int:
        """A row-major [..., r, c] by columns: [c, r], and behind it the next of the stack."""
        library, names = self._library, self._library.MatrixLayoutAttribute
        rows, columns = array.shape[-2:]
        layout: int = library.matrix_layout_create(CUDA_TYPES[str(array.dtype)], columns, rows, _pitch(array))
        if array.ndim > 2:
            values = {names.BATCH_COUNT: array.size // (rows * columns), names.STRIDED_BATCH_OFFSET: rows * columns}
            for attribute, value in values.items():
                dtype = library.get_matrix_layout_attribute_dtype(attribute)
                _set(library.matrix_layout_set_attribute, layout, attribute, value, dtype)
        return layout


def _set(setter: Callable[..., None], of: int, attribute: int, value: int, dtype: Any) -> None:
    buffer = np.array([value], dtype)
    setter(of, int(attribute), buffer.ctypes.data, buffer.nbytes)


def _pitch(array: Array) -> int:
    """Elements from one row to the next."""
    rows, columns = array.shape[-2:]
    return int(array.strides[-2]) // int(array.dtype.itemsize) if rows > 1 else int(columns)


def _alignment(array: Array) -> int:
    address = address_of(array)
    return min(address & -address, _MOST_ALIGNMENT) if address else _MOST_ALIGNMENT


def _key(product: MatrixProduct) -> Key:
    """All that a plan depends on."""
    arrays = (product.a, product.b, product.out, product.bias, product.aux)
    laid = tuple(one if one is None else (one.shape, one.strides, str(one.dtype), _alignment(one)) for one in arrays)
    scales = (product.scale_a is None, product.scale_b is None)
    return (*laid, product.transpose_a, product.transpose_b, product.epilogue, *scales)
