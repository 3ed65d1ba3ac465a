"""Codes of eight bits with one scale for a tensor: the largest magnitude, casts, and products of codes.

The library multiplies codes whose rows both run along k (cuBLAS 13, "cublasLtMatmul", FP8 kernels need TN), by scales
on the device, with all sizes multiples of 16: what lies otherwise is turned over, or copied to longer rows with zeros
behind, into scratch.
"""

from __future__ import annotations

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, blocks_for, element_of, per_row, wide
from executor.runtime.kernels.gpu.products import FP8_MULTIPLE, MatrixProduct, copied, in_rows
from executor.runtime.kernels.gpu.program import ELEMENTS
from strategy.graph.ops.base import Array, Call, int_attr
from strategy.sbp.tensor import DType

_PER_BLOCK = 8192
"""Elements that a block looks at, if there are so many."""
_MOST_BLOCKS = 2048
_TILE = 64
"""Rows and columns that a block turns over, as in codes.cu."""
_QUANTIZE = {DType.FLOAT8_E4M3: "quantize_e4m3", DType.FLOAT8_E5M2: "quantize_e5m2"}


def amax(call: Call) -> tuple[Launch, ...] | None:
    """See `strategy.graph.ops.quantize`; None for a piece without elements, whose largest is none."""
    (x,), (out,) = call.inputs, call.outputs
    if not x.size:
        return None
    blocks, terms = _terms(call, x)
    arguments = (x, terms, None if blocks > 1 else out, np.int64(x.size), wide((x,)))
    return (Launch(amax.__name__, element_of(x), (blocks, 1, 1), arguments), *_largest(x, terms, out))


def quantize(call: Call) -> tuple[Launch, ...] | None:
    """See `strategy.graph.ops.quantize`; None for a piece without elements."""
    (x, largest), (codes, scale, *rest) = call.inputs, call.outputs
    if not x.size:
        return None
    seen = rest[0] if int_attr(call.attrs, "observes") else None
    blocks, terms = _terms(call, x) if seen is not None else (_blocks(x), None)
    arguments = (x, largest, codes, scale, terms, seen, np.int64(x.size), wide((x, codes)))
    launch = Launch(_QUANTIZE[element_of(codes)], element_of(x), (blocks, 1, 1), arguments)
    return (launch, *_largest(x, terms, seen))


def _blocks(x: Array) -> int:
    return min(blocks_for(x.size, _PER_BLOCK), _MOST_BLOCKS)


def _terms(call: Call, x: Array) -> tuple[int, Array | None]:
    """Blocks, and memory for what each of several has found."""
    blocks = _blocks(x)
    return blocks, call.workspace.get("terms", (blocks,), "float32") if blocks > 1 else None


def _largest(x: Array, terms: Array | None, out: Array | None) -> tuple[Launch, ...]:
    """The largest of what several blocks have found."""
    if terms is None:
        return ()
    return (Launch("largest_term", element_of(x), (1, 1, 1), (terms, out, np.int64(terms.size))),)


def scaled_matmul(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.scaled_matmul`; w is turned over."""
    x, w = call.inputs[:2]
    return _product(call, in_rows(x), w, turn_b=True)


def scaled_matmul_nt(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.scaled_matmul`."""
    y, w = call.inputs[:2]
    return _product(call, in_rows(y), w)


def scaled_matmul_tn(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.scaled_matmul`; both operands are turned over."""
    x, y = call.inputs[:2]
    return _product(call, in_rows(x), in_rows(y), turn_a=True, turn_b=True)


def _product(
    call: Call, a: Array, b: Array, *, turn_a: bool = False, turn_b: bool = False
) -> tuple[MatrixProduct | Launch, ...] | None:
    """a[m, k] b[n, k] of codes, either of which may have to be turned over; None for what is empty, and in float64."""
    scale_a, scale_b = call.inputs[2:]
    out = in_rows(call.outputs[0])
    if not a.size or not b.size or element_of(out) not in ELEMENTS:
        return None
    before: list[Launch] = []

    def laid(name: str, codes: Array, turned: bool) -> Array:
        wide_rows, wide_columns = (-(-size // FP8_MULTIPLE) * FP8_MULTIPLE for size in codes.shape)
        if not turned and codes.shape == (wide_rows, wide_columns):
            return codes
        shape = (wide_columns, wide_rows) if turned else (wide_rows, wide_columns)
        there: Array = call.workspace.get(f"codes {name}", shape, codes.dtype)
        tiles = blocks_for(wide_rows, _TILE) * blocks_for(wide_columns, _TILE)
        figures = map(np.int64, (*codes.shape, wide_rows, wide_columns))
        arguments = (codes, there, np.int32(turned), *figures)
        before.append(Launch("arrange_codes", element_of(out), per_row(tiles), arguments))
        return there

    first, second = laid("a", a, turn_a), laid("b", b, turn_b)
    shape = (first.shape[0], second.shape[0])
    result = out if out.shape == shape else call.workspace.get("padded out", shape, out.dtype)
    product = MatrixProduct(first, second, result, transpose_b=True, scale_a=scale_a, scale_b=scale_b)
    return (*before, product, *([] if result is out else [copied(result, out)]))
