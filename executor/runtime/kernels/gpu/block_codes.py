"""Codes with a scale for every block: casts by kernels of ours, and products of what the codes stand for.

A product of such codes is one of halves, or float32: of what they stand for, in scratch, each rounded once. So it runs
on every device, as fast as without codes. The library multiplies some of them as they are, on some devices, with scales
laid as these read them (cuBLAS 13, "cublasLtMatmul"); nothing here asks for that.
"""

from __future__ import annotations

import math

import numpy as np

from executor.runtime.kernels.gpu.launch import Launch, at_most, blocks_for, element_of, per_row
from executor.runtime.kernels.gpu.products import MatrixProduct, in_rows, one_product
from executor.runtime.kernels.gpu.program import BLOCK, ELEMENTS, WARP
from strategy.graph.ops.base import Array, Call, ints_attr
from strategy.graph.ops.block_scales import Blocks
from strategy.sbp.tensor import LARGEST_CODE, DType

_FORMATS = {DType.FLOAT8_E4M3: "e4m3", DType.FLOAT8_E5M2: "e5m2", DType.FLOAT4_E2M1_X2: "e2m1"}
"""Of codes, as kernels are named."""
_KINDS = {DType.FLOAT32: 0, DType.FLOAT8_E8M0: 1, DType.FLOAT8_E4M3: 2}
"""Dtypes of scales, as block_codes.cu numbers them."""


def quantize_blocks(call: Call) -> tuple[Launch, ...] | None:
    """See `strategy.graph.ops.block_scales`; None for a piece without elements."""
    (x, *amax), (codes, scales, *whole) = call.inputs, call.outputs
    if not x.size:
        return None
    rows, columns = ints_attr(call.attrs, "blocks")
    dtype, element = DType(str(call.attrs["dtype"])), element_of(x)
    kind, tensor = np.int32(_KINDS[element_of(scales)]), whole[0] if whole else None
    tensors, shape = math.prod(x.shape[:-2]), _shape(x, (rows, columns))
    per_block = BLOCK if columns == 1 else BLOCK // WARP
    grid = at_most(blocks_for(scales.size, per_block))
    most = np.float32(LARGEST_CODE[dtype])
    found = (x, amax[0] if amax else None, _bytes(scales), tensor, kind, most, np.int64(tensors), *shape)
    written = (x, _bytes(scales), tensor, _bytes(codes), kind, *shape)
    return (
        Launch("block_scales", element, grid, found),
        Launch(f"block_codes_{_FORMATS[dtype]}", element, per_row(math.prod(x.shape[:-1])), written),
    )


def block_scaled_matmul(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.block_scaled_matmul`."""
    return _product(call)


def block_scaled_matmul_nt(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.block_scaled_matmul`."""
    return _product(call, transpose_b=True)


def block_scaled_matmul_tn(call: Call) -> tuple[MatrixProduct | Launch, ...] | None:
    """See `strategy.graph.ops.block_scaled_matmul`."""
    return _product(call, transpose_a=True)


def _product(
    call: Call, *, transpose_a: bool = False, transpose_b: bool = False
) -> tuple[MatrixProduct | Launch, ...] | None:
    """None for what is empty, and in float64."""
    out = call.outputs[0]
    if element_of(out) not in ELEMENTS or not all(array.size for array in (*call.inputs[:2], out)):
        return None
    casts, figures = zip(*(_figures(call, position) for position in range(2)), strict=True)
    a, b = map(in_rows, figures)
    product = one_product(call, MatrixProduct(a, b, in_rows(out), transpose_a, transpose_b))
    return None if product is None else (*casts, *product)


def _figures(call: Call, position: int) -> tuple[Launch, Array]:
    """What the codes of an operand stand for, in scratch of the result's dtype, and what writes it there."""
    codes, scales, element = call.inputs[position], call.inputs[2 + position], element_of(call.outputs[0])
    of_tensors = call.inputs[4:]
    whole = of_tensors[position] if of_tensors else None
    rows, columns, *seconds = ints_attr(call.attrs, "blocks")
    blocks = (rows, columns) if position == 0 else (seconds[0], seconds[1])
    dtype = DType.FLOAT4_E2M1_X2 if codes.dtype == "uint8" else element_of(codes)
    out: Array = call.workspace.get(
        f"figures {position}", (*codes.shape[:-1], codes.shape[-1] * dtype.packed), element.numpy
    )
    kind = np.int32(_KINDS[element_of(scales)])
    arguments = (_bytes(codes), _bytes(scales), whole, out, kind, *_shape(out, blocks))
    return Launch(f"block_figures_{_FORMATS[dtype]}", element, per_row(math.prod(out.shape[:-1])), arguments), out


def _shape(x: Array, blocks: Blocks) -> tuple[np.int64, ...]:
    """Rows and columns of each tensor of a stack, and of a block."""
    rows, columns, block_rows, block_columns = map(np.int64, (*x.shape[-2:], *blocks))
    return rows, columns, block_rows, block_columns


def _bytes(codes: Array) -> Array:
    return codes.view("uint8")
