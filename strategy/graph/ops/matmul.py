"""Matrix products: `matmul`, and the two products of its gradient.

matmul     x[..., k]  w[k, n]   -> [..., n]
matmul_nt  y[..., n]  w[k, n]   -> [..., k]     y @ w.T
matmul_tn  x[..., k]  y[..., n] -> [k, n]       x.T @ y over all leading dims

There is no product fused with a bias: `matmul` then `add` has its signatures, and where the product is partial, so is
the bias (`add` takes P, P), of which boxing lets one rank keep the figures.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    linear_in,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.traits import Operands, PrecisionClass, Product, RecomputeClass
from strategy.sbp.tensor import Shape, TensorSpec


def _letters(rank: int) -> str:
    return LETTERS[: rank - 1]


def _infer_nn(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, w = inputs
    composes = len(x.shape) >= 2 and len(w.shape) == 2 and x.shape[-1] == w.shape[0]
    expect(composes, "matmul shapes do not compose", got=shapes(inputs), expected="x[..., k], w[k, n]")
    expect(x.dtype == w.dtype, "matmul mixes dtypes", got=(x.dtype, w.dtype), expected="one dtype")
    return (TensorSpec((*x.shape[:-1], w.shape[1]), x.dtype),)


def _infer_nt(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    y, w = inputs
    composes = len(y.shape) >= 2 and len(w.shape) == 2 and y.shape[-1] == w.shape[1]
    expect(composes, "matmul_nt shapes do not compose", got=shapes(inputs), expected="[..., n], [k, n]")
    expect(y.dtype == w.dtype, "matmul_nt mixes dtypes", got=(y.dtype, w.dtype), expected="one dtype")
    return (TensorSpec((*y.shape[:-1], w.shape[0]), y.dtype),)


def _infer_tn(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, y = inputs
    composes = len(x.shape) >= 2 and len(y.shape) >= 2 and x.shape[:-1] == y.shape[:-1]
    expect(composes, "matmul_tn shapes do not compose", got=shapes(inputs), expected="[..., k], [..., n]")
    expect(x.dtype == y.dtype, "matmul_tn mixes dtypes", got=(x.dtype, y.dtype), expected="one dtype")
    return (TensorSpec((x.shape[-1], y.shape[-1]), x.dtype),)


def _signatures_nn(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    lead = _letters(len(inputs[0].shape))
    return [*split_letters([lead + "k", "kn"], [lead + "n"]), linear_in([0], 2), linear_in([1], 2)]


def _signatures_nt(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    lead = _letters(len(inputs[0].shape))
    return [*split_letters([lead + "n", "kn"], [lead + "k"]), linear_in([0], 2), linear_in([1], 2)]


def _signatures_tn(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    lead = _letters(len(inputs[0].shape))
    return [*split_letters([lead + "k", lead + "n"], ["kn"]), linear_in([0], 2), linear_in([1], 2)]


def _run_nn(call: Call) -> None:
    x, w = call.inputs
    y = call.outputs[0]
    call.xp.matmul(x.reshape(-1, x.shape[-1]), w, out=y.reshape(-1, y.shape[-1]))


def _run_nt(call: Call) -> None:
    y, w = call.inputs
    x = call.outputs[0]
    call.xp.matmul(y.reshape(-1, y.shape[-1]), w.T, out=x.reshape(-1, x.shape[-1]))


def _run_tn(call: Call) -> None:
    x, y = call.inputs
    call.xp.matmul(x.reshape(-1, x.shape[-1]).T, y.reshape(-1, y.shape[-1]), out=call.outputs[0])


def _flop_nn(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size * outputs[0].shape[-1]


def _flop_tn(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 2 * inputs[0].size * inputs[1].shape[-1]


def _gradient(builder: GradientBuilder) -> None:
    x, w = builder.op.inputs
    grad = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, builder.emit("dx", "matmul_nt", (grad, w)))
    builder.give(1, builder.emit("dw", "matmul_tn", (x, grad)))


def _gradient_nt(builder: GradientBuilder) -> None:
    y, w = builder.op.inputs
    grad = builder.output_gradient()
    if builder.wants(0):
        builder.give(0, builder.emit("dx", "matmul", (grad, w)))
    builder.give(1, builder.emit("dw", "matmul_tn", (grad, y)))


def _examples(*operands: tuple[Shape, Shape]) -> tuple[Example, ...]:
    return tuple(Example((TensorSpec(one), TensorSpec(other))) for one, other in operands)


OPS = (
    OpDef(
        "matmul",
        _infer_nn,
        _flop_nn,
        _signatures_nn,
        _run_nn,
        _gradient,
        cost=Product(),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.PRODUCT,
        coded="scaled_matmul",
        block_coded="block_scaled_matmul",
        examples=_examples(((5, 7), (7, 4)), ((4, 5, 8), (8, 7))),
    ),
    OpDef(
        "matmul_nt",
        _infer_nt,
        _flop_nn,
        _signatures_nt,
        _run_nt,
        _gradient_nt,
        cost=Product(operands=Operands.NT),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.PRODUCT,
        coded="scaled_matmul_nt",
        block_coded="block_scaled_matmul_nt",
        examples=_examples(((5, 7), (4, 7)), ((4, 5, 8), (7, 8))),
    ),
    OpDef(
        "matmul_tn",
        _infer_tn,
        _flop_tn,
        _signatures_tn,
        _run_tn,
        cost=Product(operands=Operands.TN),
        precision=PrecisionClass.HALF,
        recompute=RecomputeClass.PRODUCT,
        coded="scaled_matmul_tn",
        block_coded="block_scaled_matmul_tn",
        examples=_examples(((5, 7), (5, 4)), ((4, 5, 8), (4, 5, 7))),
    ),
)
