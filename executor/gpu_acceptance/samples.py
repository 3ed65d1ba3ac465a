"""Samples of acceptance: one act of each kind that has kernels, on operands like those of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.gpu_acceptance.bench import Bench, Sizes
from executor.runtime.kernels.gpu import (
    arithmetic,
    attention,
    block_codes,
    codes,
    elementwise,
    norms,
    products,
    reductions,
    slices,
    update,
)
from executor.runtime.kernels.gpu import rows as by_rows
from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Example, Workspace
from strategy.graph.ops.block_scales import Blocks, scales_shape
from strategy.sbp.tensor import DType, Shape, TensorSpec

TOLERANCES: Mapping[DType, float] = {DType.FLOAT32: 1e-5, DType.BFLOAT16: 1e-2, DType.FLOAT16: 2e-3}
"""Of the largest error in a row over the row's largest figure."""
_CLASSES = {"label_smoothing": 0.1, "ignore_index": -100}
_ADAM = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
_DROP = {"rate": 0.1, "seed": 7}
_CODES = (DType.FLOAT8_E4M3, DType.FLOAT8_E4M3, DType.FLOAT8_E5M2)
_BLOCK_SIZE = 32
_BLOCKS: Attrs = {"dtype": str(DType.FLOAT8_E4M3), "scales": str(DType.FLOAT8_E8M0), "blocks": (1, _BLOCK_SIZE)}
"""Scales that are powers of two: no ties."""
_OBSERVED: Attrs = {"dtype": str(DType.FLOAT8_E4M3), "observes": 1}


@dataclass(frozen=True, slots=True)
class Sample:
    """One act of a kind, and what is special about it where there are several of the kind."""

    kind: str
    example: Example
    special: str = ""

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.kind} {self.special}".rstrip()


def kernel_samples(sizes: Sizes, half: DType) -> list[Sample]:
    """Acts of all kinds with kernels; losses and updates in float32, as in mixed precision, all else in a half."""
    rows, width, classes = sizes.rows, sizes.width, sizes.classes
    x, vector, logits = _spec((rows, width), half), _spec((width,), half), _spec((rows, classes))
    row, scalar, labels = _spec((rows,)), _spec(()), _spec((rows,), DType.INT32)
    table, heads = _spec((classes, width), half), _spec((1, rows, width // 64, 64), half)
    ids: Mapping[int, tuple[float, float]] = {1: (0, classes)}
    loss = {**_CLASSES, "classes": classes}
    unary = (
        elementwise.gelu,
        elementwise.gelu_exact,
        elementwise.silu,
        arithmetic.accumulate,
        by_rows.softmax,
        by_rows.log_softmax,
        reductions.square_sum,
    )
    binary = (
        *(arithmetic.add, arithmetic.sub, arithmetic.mul, arithmetic.add_n),
        *(elementwise.gelu_grad, elementwise.gelu_exact_grad, elementwise.silu_grad, elementwise.swiglu),
        *(by_rows.softmax_grad, by_rows.log_softmax_grad),
    )
    bounded, apart = {"limit": 1.2}, {1: (0.5, 3.0)}
    figures, odd = (_spec((rows, width)), scalar, scalar), _spec((rows, classes - 1))
    found: dict[Callable[[Call], object], Example] = {
        **{make: Example((x,)) for make in unary},
        **{make: Example((x, x)) for make in binary},
        arithmetic.div: Example((x, x), ranges=apart),
        elementwise.swiglu_grad: Example((x, x, x)),
        elementwise.bounded_swiglu: Example((x, x), attrs=bounded),
        elementwise.bounded_swiglu_dgate: Example((x, x, x), attrs=bounded),
        elementwise.bounded_swiglu_dup: Example((x, x, x), attrs=bounded),
        norms.layer_norm: Example((x, vector, vector)),
        norms.layer_norm_grad: Example((x, vector, row, row, x)),
        norms.rms_norm: Example((x, vector)),
        norms.rms_norm_grad: Example((x, vector, row, x)),
        by_rows.sum_exp: Example((logits, row)),
        by_rows.sum_exp_grad: Example((logits, row, row)),
        by_rows.cross_entropy: Example((logits, labels, row), attrs=loss, ranges=ids),
        by_rows.cross_entropy_grad: Example((logits, labels, row), attrs=loss, ranges=ids),
        elementwise.log: Example((_spec((rows, width)),), ranges={0: (0.5, 3.0)}),
        reductions.reduce_sum: Example((x,), attrs={"axes": (0,), "keepdims": 0}),
        reductions.reduce_max: Example((odd,), attrs={"axes": (1,), "keepdims": 0}),
        elementwise.reshape: Example((x,), attrs={"shape": (width, rows)}),
        elementwise.dropout: Example((x,), attrs=_DROP),
        elementwise.add_dropped: Example((x, x), attrs=_DROP),
        elementwise.rotary: Example((heads,), attrs={"base": 10000.0, "reverse": 0}),
        elementwise.cast: Example((x,), attrs={"dtype": str(DType.FLOAT32)}),
        slices.gather: Example((table, labels), attrs={"axis": 0}, ranges=ids),
        slices.gather_grad: Example((labels, x), attrs={"axis": 0, "rows": classes}, ranges={0: (0, classes)}),
        codes.amax: Example((x,)),
        codes.quantize: Example((x, scalar), attrs=_OBSERVED, ranges={1: (1.75, 1.75)}),  # a scale of 2^-8: no ties
        block_codes.quantize_blocks: Example((x,), attrs=_BLOCKS),
        update.adamw: Example(figures, figures[:1] * 3, _ADAM, {5: (0.0, 1.0), 2: (0.0, 0.01)}),
    }
    stack = _spec((4, rows // 4, width), half)
    positions: Attrs = {"axes": (0,), "keepdims": 0}
    odd_loss: Attrs = {**loss, "classes": classes - 1}
    others = [
        Sample(arithmetic.add.__name__, Example((stack, vector)), "of a bias"),
        Sample(reductions.reduce_sum.__name__, Example((stack,), attrs=positions), "of positions"),
        Sample(by_rows.sum_exp.__name__, Example((odd, row)), "of an odd vocabulary"),
        Sample(
            by_rows.cross_entropy_grad.__name__,
            Example((odd, labels, row), attrs=odd_loss, ranges={1: (0, classes - 1)}),
            "of an odd vocabulary",
        ),
    ]
    return [*(Sample(make.__name__, example) for make, example in found.items()), *others]


def product_samples(sizes: Sizes, element: DType) -> dict[str, Example]:
    """Kind -> its operands: a linear map of a model, and a stack of products as of heads."""
    x, w = _spec((sizes.rows, sizes.width), element), _spec((sizes.width, sizes.width), element)
    stack = _spec((16, sizes.sequence, 64), element)
    flags = {"transpose_a": 0, "transpose_b": 1}
    found: dict[Callable[[Call], object], Example] = {
        products.matmul: Example((x, w)),
        products.matmul_nt: Example((x, w)),
        products.matmul_tn: Example((x, x)),
        products.batch_matmul: Example((stack, stack), attrs=flags),
    }
    return {make.__name__: example for make, example in found.items()}


def samples_of_codes(sizes: Sizes, result: DType) -> dict[str, Example]:
    """Kind -> its operands: a linear map of a model on codes, and its gradients, of which those that come are E5M2.

    With a scale for each block all are E4M3.
    """
    shapes = ((sizes.rows, sizes.width), (sizes.width, sizes.width), (sizes.rows, sizes.width))
    x, w, dy = (_spec(shape, dtype) for shape, dtype in zip(shapes, _CODES, strict=True))
    scales = _spec(()), _spec(())
    attrs: Attrs = {"dtype": str(result)}
    pairs: dict[Callable[[Call], object], tuple[TensorSpec, TensorSpec]] = {
        codes.scaled_matmul: (x, w),
        codes.scaled_matmul_nt: (dy, w),
        codes.scaled_matmul_tn: (x, dy),
    }
    found = {make.__name__: Example((*pair, *scales), attrs=attrs) for make, pair in pairs.items()}
    deep = _BLOCK_SIZE
    of_blocks: dict[Callable[[Call], object], tuple[TensorSpec, TensorSpec, tuple[Blocks, Blocks]]] = {
        block_codes.block_scaled_matmul: (x, w, ((1, deep), (deep, 1))),
        block_codes.block_scaled_matmul_nt: (x, w, ((1, deep), (1, deep))),
        block_codes.block_scaled_matmul_tn: (x, x, ((deep, 1), (deep, 1))),
    }
    for make, (first, second, blocks) in of_blocks.items():
        both = zip((first, second), blocks, strict=True)
        powers = (_spec(scales_shape(spec.shape, one), DType.FLOAT8_E8M0) for spec, one in both)
        of_both: Attrs = {**attrs, "blocks": (*blocks[0], *blocks[1])}
        found[make.__name__] = Example((first, second, *powers), attrs=of_both, ranges={2: (1, 5), 3: (1, 5)})
    return found


def attention_samples(sizes: Sizes, element: DType) -> dict[str, Example]:
    """Kind -> its operands: causal attention over packed heads, as GPT-2 has it.

    The gradient reads some rows, log-sum-exps, and a gradient. They are not those of the scores: then the gradient of
    a query that sees one key would be nothing but rounding. Nor are they much above: float16 would lose such figures.
    """
    forward = Example((_spec((4, sizes.sequence, 16, 3, 64), element),), attrs={"causal": 1})
    out, lse = op_definition(attention.attention.__name__).infer(forward.inputs, (), forward.attrs)
    backward = Example((*forward.inputs, out, lse, out), attrs=forward.attrs, ranges={2: (2.0, 4.0)})
    return {attention.attention.__name__: forward, attention.attention_grad.__name__: backward}


def _spec(shape: Shape, dtype: DType = DType.FLOAT32) -> TensorSpec:
    return TensorSpec(shape, dtype)


def drawn(example: Example, seed: int) -> list[Array]:
    """Operands, then updates, on the host, as far as their dtype goes."""
    rng, found = np.random.default_rng(seed), []
    for position, spec in enumerate((*example.inputs, *example.updates)):
        low, high = example.ranges.get(position, (-2.0, 2.0))
        if spec.dtype.is_float:
            found.append(rng.uniform(low, high, spec.shape).astype(spec.dtype.numpy))
        else:
            found.append(rng.integers(int(low), int(high), spec.shape).astype(spec.dtype.numpy))
    return found


def call_on(bench: Bench, kind: str, example: Example, operands: Sequence[Array]) -> Call:
    """An act over arrays on the device."""
    xp, count = bench.xp, len(example.inputs)
    arrays = [uploaded(xp, array) for array in operands]
    specs = op_definition(kind).infer(example.inputs, example.updates, example.attrs)
    outputs = tuple(xp.empty(spec.nbytes, "uint8").view(spec.dtype.numpy).reshape(spec.shape) for spec in specs)
    boxes = [tuple((0, size) for size in spec.shape) for spec in (*example.inputs, *specs)]
    inputs, updates = tuple(arrays[:count]), tuple(arrays[count:])
    return Call(xp, example.attrs, inputs, outputs, updates, tuple(boxes[:count]), tuple(boxes[count:]), Workspace(xp))


def uploaded(xp: Any, array: Array) -> Array:
    """On the device; codes as bytes, for CuPy makes no arrays of them, but views."""
    if array.dtype.itemsize > 1:
        return xp.asarray(array)
    return xp.asarray(array.view("uint8")).view(array.dtype)


def downloaded(array: Array) -> Array:
    """On the host."""
    return array.get() if array.dtype.itemsize > 1 else array.view("uint8").get().view(array.dtype)


def wanted(call: Call, kind: str, operands: Sequence[Array]) -> list[Array]:
    """What the array code gives on the host in double precision: outputs, then updates."""
    wide = [array.astype(np.float64) if array.dtype.kind not in "iu" else array for array in operands]
    outputs = tuple(np.empty(array.shape) for array in call.outputs)
    inputs, updates = tuple(wide[: len(call.inputs)]), tuple(wide[len(call.inputs) :])
    boxes = (call.input_boxes, call.output_boxes)
    op_definition(kind).run(Call(np, call.attrs, inputs, outputs, updates, *boxes, Workspace(np)))
    return [*outputs, *updates]


def error_of(bench: Bench, kind: str, example: Example) -> float:
    """The largest error of an act on the device over the row's largest figure; infinite for what is no number.

    Codes are to be those of the figures in double precision.
    """
    operands = drawn(example, seed=1)
    call = call_on(bench, kind, example, operands)
    right = wanted(call, kind, operands)
    bench.acts.bind(op_definition(kind), call).run()
    bench.acts.flush()
    pairs = [(downloaded(array), good) for array, good in zip((*call.outputs, *call.updates), right, strict=True)]
    coded = [(found, good.astype(found.dtype) if found.dtype.itemsize == 1 else good) for found, good in pairs]
    return max(row_error(found, good) for found, good in coded)


def row_error(found: Array, right: Array) -> float:
    """The largest error in a row over the row's largest figure; infinite for what is no number."""
    width = right.shape[-1] if right.ndim else 1
    rows, wanted_rows = (np.asarray(array, np.float64).reshape(-1, width) for array in (found, right))
    largest = np.maximum(np.abs(wanted_rows).max(axis=-1), 1e-30)
    worst = np.abs(rows - wanted_rows).max(axis=-1) / largest
    return float(np.where(np.isnan(worst), np.inf, worst).max())
