"""Matrix products as values: which acts become which. `cublaslt.py` runs them.

    out[..., m, n] = epilogue(a[..., m, k] b[..., k, n])

Operands are whole and row-major; `transpose_a` says that a is stored as [..., k, m], `transpose_b` that b is
[..., n, k].

Tensor cores are fed by loads of sixteen bytes. Where a matrix in halves has rows of other lengths, as logits over
50,257 classes do, the library is left with kernels that are several times slower (on an H200 90 to 140 TFLOP/s instead
of 600); so operands are copied to longer rows, with zeros behind, and the result from these, where the product takes
much longer than the copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, element_of, per_row, rows_and_width
from executor.runtime.kernels.gpu.program import PACK_NBYTES
from strategy.base.errors import InputError
from strategy.graph.ops.base import Array, Call, int_attr
from strategy.sbp.tensor import DType, Shape

FP8 = (str(DType.FLOAT8_E4M3), str(DType.FLOAT8_E5M2))
"""Of codes; the library multiplies no two of the second kind."""
FP8_MULTIPLE = 16
"""Of all sizes of a product of codes."""


class Epilogue(StrEnum):
    """What is done to a product before it is written, by the name that cuBLASLt has for it.

    Names with A are of its first operand, which is our second: it sees the transposed product.
    """

    NONE = "DEFAULT"
    BIAS = "BIAS"
    """+ bias[n]"""
    GELU_OF_BIAS = "GELU_AUX_BIAS"
    """aux[m, n] = product + bias[n]; gelu(aux)"""
    GELU_SLOPE = "DGELU"
    """product gelu'(aux[m, n])"""
    GELU_SLOPE_AND_SUM = "DGELU_BGRAD"
    """product gelu'(aux[m, n]); bias[n] = its sum over m"""
    SUM_OF_B = "BGRADA"
    """product; bias[n] = the sum of b over k"""

    @property
    def has_bias(self) -> bool:
        """Whether it reads or writes one."""
        return self not in (Epilogue.NONE, Epilogue.GELU_SLOPE)

    @property
    def has_aux(self) -> bool:
        """Whether it reads or writes what is before the activation."""
        return self in (Epilogue.GELU_OF_BIAS, Epilogue.GELU_SLOPE, Epilogue.GELU_SLOPE_AND_SUM)


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """One product, or a stack of products with the same leading dims.

    Attributes:
        a: the first operand.
        b: the second operand.
        out: the result, of the operands' dtype; of any float dtype for codes of eight bits.
        transpose_a: whether a is stored as [..., k, m].
        transpose_b: whether b is stored as [..., n, k].
        epilogue: what follows.
        bias: [n], read or written by the epilogue.
        aux: like `out`, read or written by the epilogue.
        scale_a: a float32 on the device that multiplies a, where it is codes.
        scale_b: the same of b.

    Raises:
        InputError: on construction, where operands do not compose or the library has no such product.
    """

    a: Array
    b: Array
    out: Array
    transpose_a: bool = False
    transpose_b: bool = False
    epilogue: Epilogue = Epilogue.NONE
    bias: Array | None = None
    aux: Array | None = None
    scale_a: Array | None = None
    scale_b: Array | None = None

    def __post_init__(self) -> None:
        (m, k), (same_k, n) = self._sides(self.a, self.transpose_a), self._sides(self.b, self.transpose_b)
        shape = (*self.a.shape[:-2], m, n)
        if k != same_k or self.a.shape[:-2] != self.b.shape[:-2] or self.out.shape != shape:
            got = (self.a.shape, self.b.shape, self.out.shape)
            raise InputError(
                "operands of a product do not compose", got=got, expected="[.., m, k], [.., k, n], [.., m, n]"
            )
        if (self.bias is None) == self.epilogue.has_bias or (self.aux is None) == self.epilogue.has_aux:
            expected = "a bias and an aux where the epilogue has them"
            raise InputError("an epilogue lacks an operand", got=str(self.epilogue), expected=expected)
        laid = not self.transpose_a and self.transpose_b and not any(size % FP8_MULTIPLE for size in (m, n, k))
        if self.is_fp8 and (not laid or str(self.a.dtype) == str(self.b.dtype) == FP8[1]):
            expected = f"a[m, k] and b[n, k] with multiples of {FP8_MULTIPLE}, one of them at least in E4M3"
            raise InputError("the library has no such product of codes", got=(m, n, k), expected=expected)

    @staticmethod
    def _sides(array: Array, transposed: bool) -> tuple[int, int]:
        rows, columns = array.shape[-2:]
        return (columns, rows) if transposed else (rows, columns)

    @property
    def is_fp8(self) -> bool:
        """Whether operands are codes of eight bits."""
        return str(self.a.dtype) in FP8

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(products, m, n, k)."""
        m, k = self._sides(self.a, self.transpose_a)
        return math.prod(self.a.shape[:-2]), m, self.out.shape[-1], k

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes that are read and written at least."""
        arrays = (self.a, self.b, self.out, self.bias, self.aux)
        return sum(int(array.nbytes) for array in arrays if array is not None)


_WORTH_COPYING = 256
"""FLOP of a product, for each byte copied, from which on it takes less than it saves."""


def one_product(call: Call, product: MatrixProduct) -> tuple[MatrixProduct | Launch, ...] | None:
    """A product, on longer rows where that is quicker.

    None for what is empty, or of two dtypes: the array module knows what that means.
    """
    if not element_of(product.a) == element_of(product.b) == element_of(product.out) or not all(product.sizes):
        return None
    padded = {name: shape for name, shape in _padded_shapes(product).items() if shape is not None}
    copied_nbytes = sum(getattr(product, name).nbytes for name in padded)
    if not padded or product.flop < _WORTH_COPYING * copied_nbytes:
        return (product,)
    dtype = product.a.dtype
    there = {name: call.workspace.get(f"padded {name}", shape, dtype) for name, shape in padded.items()}
    before = [copied(getattr(product, name), array) for name, array in there.items() if name != "out"]
    after = [copied(there["out"], product.out)] if "out" in there else []
    _, m, _, _ = product.sizes
    if product.transpose_a and "a" in there:
        there["a"] = there["a"][:, :m]
    return (*before, replace(product, **there), *after)


def _padded_shapes(product: MatrixProduct) -> dict[str, Shape | None]:
    """Of operands that do not lie well for tensor cores, the shapes of copies that do, with zeros behind.

    Halves are read in vectors along rows, and the library wants k, and n, which is first for it, in whole vectors.
    """
    (_, m, n, k), step = product.sizes, PACK_NBYTES // product.a.dtype.itemsize
    if product.a.ndim > 2 or not element_of(product.a).is_half:
        return {}
    wide_m, wide_n, wide_k = (-(-size // step) * step for size in (m, n, k))
    shapes = {
        "a": (wide_k, wide_m) if product.transpose_a else (m, wide_k),
        "b": (wide_n, wide_k) if product.transpose_b else (wide_k, wide_n),
        "out": (m, wide_n),
    }
    return {name: None if getattr(product, name).shape == shape else shape for name, shape in shapes.items()}


def copied(source: Array, target: Array) -> Launch:
    """A copy to an array of more rows or columns, which are zeros then, or of fewer."""
    rows, width = map(min, zip(source.shape, target.shape, strict=True))
    figures = map(np.int64, (rows, width, source.shape[1], target.shape[1], target.shape[1]))
    return Launch("copy_pitched", element_of(source), per_row(target.shape[0]), (source, target, *figures))


def in_rows(array: Array) -> Array:
    """[..., d] as [rows, d]."""
    return array.reshape(rows_and_width(array.shape))


def matmul(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.matmul`."""
    x, w = call.inputs
    return one_product(call, MatrixProduct(in_rows(x), w, in_rows(call.outputs[0])))


def matmul_nt(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.matmul`."""
    y, w = call.inputs
    return one_product(call, MatrixProduct(in_rows(y), w, in_rows(call.outputs[0]), transpose_b=True))


def matmul_tn(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.matmul`."""
    x, y = call.inputs
    return one_product(call, MatrixProduct(in_rows(x), in_rows(y), call.outputs[0], transpose_a=True))


def batch_matmul(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.batch_matmul`."""
    a, b = call.inputs
    flip_a, flip_b = (bool(int_attr(call.attrs, f"transpose_{operand}")) for operand in "ab")
    return one_product(call, MatrixProduct(a, b, call.outputs[0], flip_a, flip_b))
