"""Element-wise ops of two operands, and `where`, with NumPy's broadcasting; comparisons give 1 or 0 as int32.

A split of the result's dim splits every operand that has the dim; one that is broadcast along it stays whole. The
gradient of a broadcast operand is summed over the dims that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strategy.base.errors import present
from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    LETTERS,
    MAX,
    MIN,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    linear_in,
    picks_from,
    shapes,
    split_letters,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, ragged_spec, same_rows
from strategy.sbp.sbp import Partial
from strategy.sbp.tensor import DType, Shape, TensorSpec

_ONE = "-"
"""Stands for a dim along which an operand is broadcast."""


def broadcast_shape(operands: Sequence[Shape]) -> Shape | None:
    """NumPy's rule: dims match from the last on, or are one; None where shapes do not compose."""
    longest = max(map(len, operands))
    padded = [(1,) * (longest - len(shape)) + shape for shape in operands]
    result = tuple(map(max, zip(*padded, strict=True)))
    composes = all(size in (1, wanted) for shape in padded for size, wanted in zip(shape, result, strict=True))
    return result if composes else None


def broadcast_letters(operand: Shape, result: Shape) -> str:
    """The letters of an operand's dims among those of the result; dims that it is broadcast along have none."""
    offset = len(result) - len(operand)
    pairs = zip(operand, result[offset:], LETTERS[offset:], strict=False)
    return "".join(letter if size == wanted else _ONE for size, wanted, letter in pairs)


def broadcast_signatures(inputs: Specs, result: Shape) -> list[AxisSignature]:
    """Every dim of the result split, and in the operands that have it."""
    operands = [broadcast_letters(spec.shape, result) for spec in inputs]
    return split_letters(operands, [LETTERS[: len(result)]], skip=_ONE)


def summed_to(builder: GradientBuilder, label: str, grad: str, shape: Shape) -> str:
    """The gradient of an operand of this shape: `grad` summed over the dims that the operand was broadcast along."""
    (found,) = builder.specs((grad,))
    if found.shape == shape:
        return grad
    offset = len(found.shape) - len(shape)
    stretched = (offset + d for d, size in enumerate(shape) if size != found.shape[offset + d])
    axes = (*range(offset), *stretched)
    total = builder.emit(label, "reduce_sum", (grad,), {"axes": axes, "keepdims": 0})
    if builder.specs((total,))[0].shape == shape:
        return total
    return builder.emit(f"{label}_shape", "reshape", (total,), {"shape": shape})


@dataclass(frozen=True, slots=True)
class _Binary:
    """One kind: the array module's function of this name, and what its signatures rest on.

    `linear` are sets of operands that it is linear in together; `extreme` is the reduction that it is one of.
    """

    kind: str
    function: str
    linear: tuple[tuple[int, ...], ...] = ()
    extreme: Partial | None = None
    gradient: Callable[[GradientBuilder], None] | None = None
    compares: bool = False
    floats: bool = False
    ragged: bool = False
    """Operands may be ragged, both alike: a row that is not there makes no row of a product, and is zero in a sum."""


def _give(builder: GradientBuilder, position: int, label: str, grad: str) -> None:
    (operand,) = builder.specs((builder.op.inputs[position],))
    builder.give(position, summed_to(builder, label, grad, operand.shape))


def _gradient_add(builder: GradientBuilder) -> None:
    for position, label in enumerate(("da", "db")):
        if builder.wants(position):
            _give(builder, position, label, builder.output_gradient())


def _gradient_sub(builder: GradientBuilder) -> None:
    if builder.wants(0):
        _give(builder, 0, "da", builder.output_gradient())
    if builder.wants(1):
        (y,) = builder.specs((builder.op.inputs[1],))
        total = summed_to(builder, "sum", builder.output_gradient(), y.shape)
        builder.give(1, builder.emit("db", "neg", (total,)))


def _gradient_mul(builder: GradientBuilder) -> None:
    x, y = builder.op.inputs
    for position, other, label in ((0, y, "da"), (1, x, "db")):
        if builder.wants(position):
            product = builder.emit(f"{label}_product", "mul", (builder.output_gradient(), other))
            _give(builder, position, label, product)


def _gradient_div(builder: GradientBuilder) -> None:
    """d(x / y) = dx / y - (x / y) dy / y."""
    y, out = builder.op.inputs[1], builder.op.outputs[0]
    quotient = builder.emit("quotient", "div", (builder.output_gradient(), y))
    if builder.wants(0):
        _give(builder, 0, "da", quotient)
    if builder.wants(1):
        product = builder.emit("product", "mul", (quotient, out))
        total = summed_to(builder, "sum", product, builder.specs((y,))[0].shape)
        builder.give(1, builder.emit("db", "neg", (total,)))


def _gradient_winner(builder: GradientBuilder) -> None:
    """All of it to the operand that won; of equal ones, to the first."""
    pair = builder.op.inputs if builder.op.kind == "maximum" else builder.op.inputs[::-1]
    (out,) = builder.specs(builder.op.outputs)
    won = builder.emit("won", "greater_equal", pair)
    chosen = builder.emit("mask", "cast", (won,), {"dtype": str(out.dtype)})
    grad = builder.output_gradient()
    taken = builder.emit("taken", "mul", (grad, chosen))
    rest = builder.emit("rest", "sub", (grad, taken)) if builder.wants(1) else ""
    for position, label in enumerate(("da", "db")):
        if builder.wants(position):
            _give(builder, position, label, taken if position == 0 else rest)


_BOTH = (0, 1)
_BINARY = (
    _Binary("add", "add", linear=(_BOTH,), gradient=_gradient_add, ragged=True),
    _Binary("sub", "subtract", linear=(_BOTH,), gradient=_gradient_sub),
    _Binary("mul", "multiply", linear=((0,), (1,)), gradient=_gradient_mul, ragged=True),
    _Binary("div", "divide", linear=((0,),), gradient=_gradient_div, floats=True),
    _Binary("maximum", "maximum", extreme=MAX, gradient=_gradient_winner),
    _Binary("minimum", "minimum", extreme=MIN, gradient=_gradient_winner),
    _Binary("equal", "equal", compares=True),
    _Binary("greater", "greater", compares=True),
    _Binary("greater_equal", "greater_equal", compares=True),
)


def _infer(row: _Binary) -> Callable[[Specs, Specs, Attrs], tuple[TensorSpec, ...]]:
    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        x, y = inputs
        expect(x.dtype == y.dtype, f"{row.kind} mixes dtypes", got=(x.dtype, y.dtype), expected="one dtype")
        fits = x.dtype.is_float or not row.floats
        expect(fits, f"{row.kind} of integers", got=x.dtype, expected="float32 or float64")
        if x.ragged or y.ragged:
            expect(x == y, f"{row.kind} mixes rows", got=shapes(inputs), expected="ragged tensors of one kind")
            return (x,)
        shape = broadcast_shape((x.shape, y.shape))
        rule = "dims that are equal or 1, counted from the last"
        expect(shape is not None, f"{row.kind} shapes do not compose", got=shapes(inputs), expected=rule)
        return (TensorSpec(present(shape, rule), DType.INT32 if row.compares else x.dtype),)

    return infer


def _signatures(row: _Binary) -> Callable[[Specs, Specs, Attrs, int], list[AxisSignature]]:
    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        found = broadcast_signatures(inputs, outputs[0].shape)
        found += [linear_in(positions, 2) for positions in row.linear]
        return [*found, AxisSignature((row.extreme,) * 2, (row.extreme,))] if row.extreme else found

    return signatures


def _run(row: _Binary) -> Callable[[Call], None]:
    def run(call: Call) -> None:
        getattr(call.xp, row.function)(call.inputs[0], call.inputs[1], out=call.outputs[0])

    def compare(call: Call) -> None:
        call.outputs[0][...] = getattr(call.xp, row.function)(call.inputs[0], call.inputs[1])

    return compare if row.compares else on_rows(run, adds=row.kind == "add")


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return outputs[0].size


_SHAPES: tuple[tuple[Shape, Shape], ...] = (
    ((7, 5), (7, 5)),
    ((4, 6, 5), (5,)),
    ((4, 1, 5), (6, 5)),
    ((7, 5), ()),
    ((5,), (7, 1)),
)


def _examples(row: _Binary) -> tuple[Example, ...]:
    ranges = {1: (0.5, 3.0)} if row.kind == "div" else {}
    if row.compares:
        few = {0: (0, 3), 1: (0, 3)}
        return tuple(Example((TensorSpec(x, DType.INT32), TensorSpec(y, DType.INT32)), ranges=few) for x, y in _SHAPES)
    floats = tuple(Example((TensorSpec(x), TensorSpec(y)), ranges=ranges) for x, y in _SHAPES)
    if row.floats:
        return floats
    whole = TensorSpec((7, 5), DType.INT32)
    found = (*floats, Example((whole, whole), ranges={0: (-9, 9), 1: (-9, 9)}))
    rows = ragged_spec((5, 4, 4, 7), 2)
    return (*found, Example((rows, rows), derive={1: same_rows})) if row.ragged else found


def _infer_where(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    condition, x, y = inputs
    shape = broadcast_shape([spec.shape for spec in inputs])
    expect(not condition.dtype.is_float, "where needs a condition of integers", got=condition.dtype, expected="int32")
    expect(x.dtype == y.dtype, "where mixes dtypes", got=(x.dtype, y.dtype), expected="one dtype")
    rule = "dims that are equal or 1, counted from the last"
    expect(shape is not None, "where shapes do not compose", got=shapes(inputs), expected=rule)
    return (TensorSpec(present(shape, rule), x.dtype),)


def _signatures_where(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*broadcast_signatures(inputs, outputs[0].shape), *picks_from((1, 2), 3)]


def _run_where(call: Call) -> None:
    """x where the condition is 1, y where it is 0."""
    condition, x, y = call.inputs
    call.outputs[0][...] = call.xp.where(condition != 0, x, y)


def _gradient_where(builder: GradientBuilder) -> None:
    (out,) = builder.specs(builder.op.outputs)
    mask = builder.emit("mask", "cast", (builder.op.inputs[0],), {"dtype": str(out.dtype)})
    grad = builder.output_gradient()
    taken = builder.emit("taken", "mul", (grad, mask))
    if builder.wants(1):
        _give(builder, 1, "da", taken)
    if builder.wants(2):
        _give(builder, 2, "db", builder.emit("rest", "sub", (grad, taken)))


_CONDITION = {0: (0, 2)}

OPS = (
    *(
        OpDef(
            row.kind,
            _infer(row),
            _flop,
            _signatures(row),
            _run(row),
            row.gradient,
            in_place=(0, 1),
            ragged=row.ragged,
            examples=_examples(row),
        )
        for row in _BINARY
    ),
    OpDef(
        "where",
        _infer_where,
        _flop,
        _signatures_where,
        _run_where,
        _gradient_where,
        in_place=(0, 1, 2),
        examples=(
            Example((TensorSpec((7, 5), DType.INT32), TensorSpec((7, 5)), TensorSpec((7, 5))), ranges=_CONDITION),
            Example((TensorSpec((7, 1), DType.INT32), TensorSpec((5,)), TensorSpec((7, 5))), ranges=_CONDITION),
        ),
    ),
)
