"""Matrix products of codes with a scale per block, accumulated in float32.

    block_scaled_matmul           x[..., k]   w[k, n]      scales of x, of w  -> [..., n]
    block_scaled_matmul_nt        y[..., n]   w[k, n]      scales of y, of w  -> [..., k]     y @ w.T
    block_scaled_matmul_tn        x[..., k]   y[..., n]    scales of x, of y  -> [k, n]       x.T @ y over leading dims
    block_scaled_grouped_matmul   rows[e,g,s,d]  w[e,d,f]  scales of both     -> rows[e,g,s,f], `transpose` as there

Behind the scales of blocks may stand a scale of either tensor. `blocks` are the rows and columns of a block of the
first operand, then of the second; `dtype` is that of the result. Scales have the dims of what they scale, over blocks,
so that a split is one of both; it cuts no block (see `block_scales`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from strategy.graph.graph import Attrs
from strategy.graph.ops import grouped_matmul
from strategy.graph.ops.base import (
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    ints_attr,
    shapes,
    split_letters,
)
from strategy.graph.ops.block_scales import Blocks, is_aligned, scales_shape, spread, unpacked
from strategy.graph.ops.linear import DTYPES
from strategy.graph.ops.on_rows import ragged_spec
from strategy.graph.ops.scaled_matmul import flop_of_product, infer_product, letters_of, multiply
from strategy.graph.ops.traits import Gemm, Operands, PrecisionClass, Product, RecomputeClass
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B, Split, has_partial
from strategy.sbp.tensor import LARGEST_CODE, DType, Shape, TensorSpec

Infer = Callable[[Specs, Specs, Attrs], tuple[TensorSpec, ...]]
Signatures = Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]


def sums_over_last(cost: Product, attrs: Attrs, position: int) -> bool:
    """Whether a product sums over the last dim of an operand; else over the one before it."""
    operands = Operands.NT if attrs.get("transpose") else cost.operands
    return operands is not Operands.TN and (position == 0 or operands is Operands.NT)


def _blocks(attrs: Attrs) -> tuple[Blocks, Blocks]:
    rows, columns, second_rows, second_columns = ints_attr(attrs, "blocks")
    return (rows, columns), (second_rows, second_columns)


def _expect_scales(inputs: Specs, attrs: Attrs) -> None:
    """Raise InputError unless there is a scale for every block of either operand, and none or one for either tensor."""
    codes, scales, tensors = inputs[:2], inputs[2:4], inputs[4:]
    wanted = [scales_shape(spec.elements, blocks) for spec, blocks in zip(codes, _blocks(attrs), strict=True)]
    fits = [spec.shape for spec in scales] == wanted and len(tensors) in (0, 2) and not any(t.shape for t in tensors)
    expect(fits, "scales of blocks do not fit", got=shapes(inputs[2:]), expected=f"{wanted}, perhaps [], []")


def _infer(operands: Operands) -> Infer:
    product = infer_product(operands)

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        _expect_scales(inputs, attrs)
        return product(inputs, updates, attrs)

    return infer


def _whole_blocks(listed: Sequence[AxisSignature], inputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Signatures of both operands with those of their scales; none that cuts a block."""
    found = []
    for one in listed:
        aligned = (
            is_aligned(spec, sbp.dim, blocks, parts)
            for spec, sbp, blocks in zip(inputs[:2], one.inputs, _blocks(attrs), strict=True)
            if isinstance(sbp, Split)
        )
        if not has_partial(one.inputs) and all(aligned):
            found.append(AxisSignature((*one.inputs, *one.inputs, *(B,) * len(inputs[4:])), one.outputs))
    return found


def _signatures(operands: Operands) -> Signatures:
    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        first, second, result = letters_of(operands, len(inputs[0].shape))
        return _whole_blocks(split_letters([first, second], [result]), inputs, attrs, parts)

    return signatures


def _run(operands: Operands) -> Callable[[Call], None]:
    def run(call: Call) -> None:
        """Codes of 8 bits and scales come as float32 (see `strategy.graph.ops.half_precision`)."""
        out = call.outputs[0]
        first, second = (_figures(call, i, out.dtype) for i in range(2))
        multiply(call, operands, first, second)
        for scale in call.inputs[4:]:
            out *= scale

    return run


def _figures(call: Call, i: int, dtype: object) -> Array:
    """What the codes of an operand stand for, but for the scale of the tensor."""
    codes, scales, blocks = call.inputs[i], call.inputs[2 + i], _blocks(call.attrs)[i]
    if isinstance(codes, Rows):
        packed = 2 if codes.dtype == "uint8" else 1
        spec = replace(
            codes.spec, shape=(*codes.spec.shape[:-1], codes.spec.shape[-1] * packed), dtype=DType(str(dtype))
        )
        rows = Rows(call.xp, call.workspace.get(f"figures {i}", (spec.nbytes,), "uint8"), spec, codes.box)
        hits, place = scales.find(codes.cells)
        _scale(call, codes.rows[hits], scales.rows[place], blocks, rows.hold(codes.cells[hits]))
        return rows
    packed = 2 if codes.dtype == "uint8" else 1
    figures = call.workspace.get(f"figures {i}", (*codes.shape[:-1], codes.shape[-1] * packed), dtype)
    _scale(call, codes, scales, blocks, figures)
    return figures


def _scale(call: Call, codes: Array, scales: Array, blocks: Blocks, out: Array) -> None:
    xp = call.xp
    if codes.dtype == "uint8":
        unpacked(xp, codes, out)
        codes = out
    xp.multiply(codes, spread(xp, scales, blocks, out.shape), out=out)


def _of_floats(spec: TensorSpec, dtype: DType) -> TensorSpec:
    return replace(spec, shape=spec.elements, dtype=dtype)


_GROUPED = next(one for one in grouped_matmul.OPS if one.block_coded)


def _infer_grouped(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    _expect_scales(inputs, attrs)
    coded = all(spec.dtype in LARGEST_CODE for spec in inputs[:2])
    expect(coded, "no codes", got=[spec.dtype for spec in inputs[:2]], expected="what quantize_blocks makes")
    expect(attrs["dtype"] in DTYPES, "no such dtype", got=attrs["dtype"], expected=", ".join(DTYPES))
    return _GROUPED.infer([_of_floats(spec, DType(str(attrs["dtype"]))) for spec in inputs[:2]], updates, attrs)


def _flop_grouped(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * math.prod(inputs[0].elements) * outputs[0].shape[-1]


def _signatures_grouped(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return _whole_blocks(_GROUPED.signatures(inputs[:2], outputs, attrs, parts), inputs, attrs, parts)


def _run_grouped(call: Call) -> None:
    out = call.outputs[0]
    figures = tuple(_figures(call, i, out.dtype) for i in range(2))
    _GROUPED.run(replace(call, inputs=figures))
    for scale in call.inputs[4:]:
        rows = out.rows
        rows *= scale


_EIGHT, _FOUR = DType.FLOAT8_E4M3, DType.FLOAT4_E2M1_X2


def _example(first: TensorSpec, second: TensorSpec, blocks: tuple[Blocks, Blocks], scales: DType) -> Example:
    """Codes of 4 bits where scales have a fraction of their own, as NVFP4 has them."""
    dtype = _FOUR if scales is _EIGHT else _EIGHT
    shaped = [replace(s, shape=(*s.shape[:-1], s.shape[-1] // dtype.packed), dtype=dtype) for s in (first, second)]
    of_blocks = [
        replace(s, shape=scales_shape(s.shape, b), dtype=scales) for s, b in zip((first, second), blocks, strict=True)
    ]
    tensors = [TensorSpec(()), TensorSpec(())] if scales is _EIGHT else []
    attrs: Attrs = {"dtype": "float64", "blocks": (*blocks[0], *blocks[1])}
    return Example((*shaped, *of_blocks, *tensors), attrs=attrs, ranges=dict.fromkeys(range(2, 6), (0.5, 2.0)))


def _examples(operands: Operands) -> tuple[Example, ...]:
    """Blocks along the letter that is summed; of the second operand square ones, too."""
    sizes = {"a": 8, "b": 8, "k": 16, "n": 8}

    def example(dims: int, deep: int, scales: DType, *, square: bool = False) -> Example:
        letters = letters_of(operands, dims)[:2]
        shaped: list[Shape] = [tuple(sizes[letter] for letter in one) for one in letters]
        along = {
            Operands.NN: ((1, deep), (deep, 1)),
            Operands.NT: ((1, deep), (1, deep)),
            Operands.TN: ((deep, 1),) * 2,
        }
        first, second = along[operands]
        return _example(
            TensorSpec(shaped[0]), TensorSpec(shaped[1]), (first, (deep, deep) if square else second), scales
        )

    square = operands is not Operands.TN
    return (
        example(3, 2, DType.FLOAT8_E8M0),
        example(2, 4, DType.FLOAT32, square=square),
        example(3, 2, _EIGHT, square=square),
    )


def _product(operands: Operands, kind: str) -> OpDef:
    return OpDef(
        kind,
        _infer(operands),
        flop_of_product(operands),
        _signatures(operands),
        _run(operands),
        cost=Product(operands=operands, blocks=True),
        precision=PrecisionClass.CONVERTS,
        recompute=RecomputeClass.PRODUCT,
        examples=_examples(operands),
    )


def _grouped_example(transpose: int, scales: DType) -> Example:
    rows, w = ragged_spec((4, 4, 5, 8), 2), TensorSpec((4, 8, 8))
    found = _example(rows, w, ((1, 2), (1, 2) if transpose else (2, 1)), scales)
    attrs: Attrs = {**found.attrs, "transpose": transpose}
    return replace(found, attrs=attrs, derive={2: _of_the_rows})


def _of_the_rows(drawn: Sequence[Array]) -> Array:
    """Scales of those rows that the codes have."""
    return drawn[2] * (drawn[0] != 0).any(axis=-1, keepdims=True)


OPS = (
    _product(Operands.NN, "block_scaled_matmul"),
    _product(Operands.NT, "block_scaled_matmul_nt"),
    _product(Operands.TN, "block_scaled_matmul_tn"),
    OpDef(
        "block_scaled_grouped_matmul",
        _infer_grouped,
        _flop_grouped,
        _signatures_grouped,
        _run_grouped,
        ragged=True,
        cost=Product(Gemm.GROUPED, blocks=True),
        precision=PrecisionClass.CONVERTS,
        recompute=RecomputeClass.PRODUCT,
        expert_weights=1,
        examples=(_grouped_example(0, DType.FLOAT32), _grouped_example(1, _EIGHT)),
    ),
)
