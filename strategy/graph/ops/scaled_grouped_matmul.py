"""Grouped products of codes of 8 bits: `grouped_matmul` with a scale for either operand, each of all experts together.

    scaled_grouped_matmul     rows[e,g,s,d]  w[e,d,f]      two scales -> rows[e,g,s,f]     `transpose` as there
    scaled_grouped_matmul_tn  rows[e,g,s,d]  dy[e,g,s,f]   two scales -> [e,d,f]

`dtype` is that of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strategy.graph.graph import Attrs
from strategy.graph.ops import grouped_matmul
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, shapes
from strategy.graph.ops.linear import DTYPES
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B, has_partial
from strategy.sbp.tensor import LARGEST_CODE, DType, TensorSpec

_SCALE = TensorSpec(())


def _infer(plain: OpDef) -> Callable[[Specs, Specs, Attrs], tuple[TensorSpec, ...]]:
    """As of halves, whatever the two codes are."""

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        operands, scales = inputs[:2], inputs[2:]
        fits = len(scales) == 2 and all(scale.shape == () and scale.dtype.is_float for scale in scales)
        expect(fits, "a product of codes needs two scales", got=shapes(scales), expected="[], []")
        coded = all(spec.dtype in LARGEST_CODE for spec in operands)
        expect(coded, "no codes of 8 bits", got=[spec.dtype for spec in operands], expected="what quantize makes")
        expect(attrs["dtype"] in DTYPES, "no such dtype", got=attrs["dtype"], expected=", ".join(DTYPES))
        dtype = DType(str(attrs["dtype"]))
        return plain.infer([replace(spec, dtype=dtype) for spec in operands], updates, attrs)

    return infer


def _signatures(plain: OpDef) -> Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]:
    """Those that split something: codes have no terms."""

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        listed = plain.signatures(inputs[:2], outputs, attrs, parts)
        return [AxisSignature((*one.inputs, B, B), one.outputs) for one in listed if not has_partial(one.inputs)]

    return signatures


def _run(plain: OpDef) -> Callable[[Call], None]:
    def run(call: Call) -> None:
        """Codes come as float32 (see `strategy.graph.ops.half_precision`)."""
        *operands, first, second = call.inputs
        plain.run(replace(call, inputs=tuple(operands)))
        out = call.outputs[0]
        figures = out.rows if isinstance(out, Rows) else out
        figures *= first
        figures *= second

    return run


def _scaled(plain: OpDef, dtypes: tuple[DType, DType]) -> OpDef:
    def example(like: Example) -> Example:
        codes = [replace(spec, dtype=dtype) for spec, dtype in zip(like.inputs, dtypes, strict=True)]
        attrs, ranges = {**like.attrs, "dtype": "float64"}, dict.fromkeys((2, 3), (0.5, 2.0))
        return replace(like, inputs=(*codes, _SCALE, _SCALE), attrs=attrs, ranges=ranges)

    return OpDef(
        plain.coded,
        _infer(plain),
        plain.flop,
        _signatures(plain),
        _run(plain),
        ragged=True,
        cost=plain.cost,
        precision=PrecisionClass.CONVERTS,
        recompute=plain.recompute,
        expert_weights=plain.expert_weights,
        examples=tuple(example(like) for like in plain.examples),
    )


OPS = tuple(_scaled(plain, (DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)) for plain in grouped_matmul.OPS)
