"""Matrix products of codes of 8 bits, one scale per tensor, accumulated in float32.

scaled_matmul     x[..., k]  w[k, n]   scale of x, scale of w -> [..., n]
scaled_matmul_nt  y[..., n]  w[k, n]   scale of y, scale of w -> [..., k]     y @ w.T
scaled_matmul_tn  x[..., k]  y[..., n] scale of x, scale of y -> [k, n]       x.T @ y over all leading dims

`dtype` is that of the result. Codes are made behind the backward pass (`strategy.passes.low_precision`), so that these
need no gradient of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    Array,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    shapes,
    split_letters,
)
from strategy.graph.ops.linear import DTYPES
from strategy.graph.ops.traits import Operands, PrecisionClass, Product, RecomputeClass
from strategy.sbp.tensor import LARGEST_CODE, DType, Shape, TensorSpec

_LAST = {Operands.NN: ("k", "kn", "n"), Operands.NT: ("n", "kn", "k"), Operands.TN: ("k", "n", "kn")}
"""Letters of both operands and of the result, but for the leading dims of samples."""
Infer = Callable[[Specs, Specs, Attrs], tuple[TensorSpec, ...]]


def letters_of(operands: Operands, dims: int) -> tuple[str, str, str]:
    """A letter per dim of both operands and of the result, where the first operand has so many dims."""
    lead, (first, second, result) = LETTERS[: dims - 1], _LAST[operands]
    if operands is Operands.TN:
        return lead + first, lead + second, result
    return lead + first, second, lead + result


def infer_product(operands: Operands) -> Infer:
    """Shape rule of a product of codes; what its other inputs are is not looked at."""

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        first, second = inputs[:2]
        *letters, result = letters_of(operands, len(first.shape))
        pairs = [
            pair for dims, spec in zip(letters, inputs, strict=False) for pair in zip(dims, spec.elements, strict=False)
        ]
        sizes = dict(pairs)
        fits = len(first.shape) >= 2 and [len(dims) for dims in letters] == [
            len(spec.shape) for spec in (first, second)
        ]
        fits = fits and all(sizes[letter] == size for letter, size in pairs)
        expected = ", ".join(f"[{', '.join(dims)}]" for dims in letters)
        expect(fits, "products of codes do not compose", got=shapes(inputs), expected=expected)
        coded = first.dtype in LARGEST_CODE and second.dtype in LARGEST_CODE
        expect(coded, "no codes", got=(first.dtype, second.dtype), expected="what quantize makes")
        expect(attrs["dtype"] in DTYPES, "no such dtype", got=attrs["dtype"], expected=", ".join(DTYPES))
        return (TensorSpec(tuple(sizes[letter] for letter in result), DType(str(attrs["dtype"]))),)

    return infer


def _infer(operands: Operands) -> Infer:
    product = infer_product(operands)

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        scales = inputs[2:]
        fits = len(scales) == 2 and all(scale.shape == () and scale.dtype.is_float for scale in scales)
        expect(fits, "a product of codes needs two scales", got=shapes(scales), expected="[], []")
        return product(inputs, updates, attrs)

    return infer


def _signatures(operands: Operands) -> Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]:
    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        first, second, result = letters_of(operands, len(inputs[0].shape))
        return split_letters([first, second, "", ""], [result])

    return signatures


def flop_of_product(operands: Operands) -> Callable[[Specs, Specs, Attrs], int]:
    """FLOPs of a product, whatever its operands are made of."""

    def flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
        columns = inputs[1] if operands is Operands.TN else outputs[0]
        return 2 * math.prod(inputs[0].elements) * columns.elements[-1]

    return flop


def _run(operands: Operands) -> Callable[[Call], None]:
    def run(call: Call) -> None:
        """Codes come as float32 (see `strategy.graph.ops.half_precision`)."""
        first, second, *scales = call.inputs
        multiply(call, operands, first, second)
        for scale in scales:
            call.outputs[0][...] *= scale

    return run


def multiply(call: Call, operands: Operands, first: Array, second: Array) -> None:
    """Write the product of two operands, leading dims as rows."""
    (out,) = call.outputs
    one, other = first.reshape(-1, first.shape[-1]), second.reshape(-1, second.shape[-1])
    one, other = (one.T if operands is Operands.TN else one), (other.T if operands is Operands.NT else other)
    call.xp.matmul(one, other, out=out.reshape(-1, out.shape[-1]))


def _examples(operands: Operands) -> tuple[Example, ...]:
    sizes = {"a": 4, "b": 5, "k": 8, "n": 7}

    def example(dims: int, dtypes: tuple[DType, DType]) -> Example:
        first, second, _ = letters_of(operands, dims)
        shaped: list[Shape] = [tuple(sizes[letter] for letter in letters) for letters in (first, second)]
        codes = [TensorSpec(shape, dtype) for shape, dtype in zip(shaped, dtypes, strict=True)]
        scales = (TensorSpec(()), TensorSpec(()))
        return Example((*codes, *scales), attrs={"dtype": "float64"}, ranges=dict.fromkeys((2, 3), (0.5, 2.0)))

    narrow, wide = DType.FLOAT8_E4M3, DType.FLOAT8_E5M2
    return example(2, (narrow, narrow)), example(3, (narrow, wide) if operands is Operands.TN else (wide, narrow))


def _product(operands: Operands, kind: str) -> OpDef:
    return OpDef(
        kind,
        _infer(operands),
        flop_of_product(operands),
        _signatures(operands),
        _run(operands),
        cost=Product(operands=operands),
        precision=PrecisionClass.CONVERTS,
        recompute=RecomputeClass.PRODUCT,
        examples=_examples(operands),
    )


OPS = (
    _product(Operands.NN, "scaled_matmul"),
    _product(Operands.NT, "scaled_matmul_nt"),
    _product(Operands.TN, "scaled_matmul_tn"),
)
