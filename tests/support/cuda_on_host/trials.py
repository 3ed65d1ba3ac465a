"""What every kernel of ours is tried on: ragged sizes, offsets, outliers; and what it must give."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import LARGEST_CODE, Box, DType, Shape, TensorSpec

TOLERANCES: Mapping[DType, float] = {DType.FLOAT32: 1e-5, DType.BFLOAT16: 1e-2, DType.FLOAT16: 2e-3}
"""Of the largest error in a row over the row's largest figure."""
WIDTHS = (1, 77, 1031, 8200)
"""Of rows: less than a warp, no multiple of anything, and more than threads keep, as single elements and as vectors."""
OFFSET, OUTLIER = 1e3, 1e4


@dataclass(frozen=True, slots=True)
class Trial:
    """One act: operands in double precision, which a trial in another dtype rounds first; `wide` ones stay float32.

    Boxes are the whole tensors if not given; `results` are the shapes of outputs where a piece is not what the shape
    rule says.
    """

    kind: str
    inputs: tuple[Array, ...]
    updates: tuple[Array, ...] = ()
    attrs: Attrs = field(default_factory=dict)
    wide: tuple[int, ...] = ()
    input_boxes: tuple[Box, ...] | None = None
    output_boxes: tuple[Box, ...] | None = None
    results: tuple[Shape, ...] | None = None
    number: int = 0

    def call(self, element: DType) -> Call:
        """The act in an element type, its results and scratch poisoned."""
        inputs = tuple(self._rounded(position, array, element) for position, array in enumerate(self.inputs))
        updates = tuple(np.array(array, np.float32) for array in self.updates)
        specs = [_spec(array, DType.FLOAT64) for array in (*inputs, *updates)]
        outputs = [_spec(array, element) for array in map(np.empty, self.results or ())]
        if self.results is None:
            typed = [_spec(array, DType(str(array.dtype))) for array in (*inputs, *updates)]
            infer = op_definition(self.kind).infer
            outputs = list(infer(typed[: len(inputs)], typed[len(inputs) :], self.attrs))
        return Call(
            np,
            self.attrs,
            inputs,
            tuple(_poisoned(spec.shape, spec.dtype.numpy) for spec in outputs),
            updates,
            self.input_boxes or tuple(_whole(spec) for spec in specs[: len(inputs)]),
            self.output_boxes or tuple(map(_whole, outputs)),
            PoisonedWorkspace(np),
            self.number,
        )

    def _rounded(self, position: int, array: Array, element: DType) -> Array:
        if not np.issubdtype(array.dtype, np.floating):
            return array.copy()
        return array.astype(np.float32 if position in self.wide else element.numpy)


class PoisonedWorkspace(Workspace):
    """Scratch that holds NaNs whenever it is asked for."""

    def get(self, name: str, shape: Shape, dtype: Any) -> Array:
        """See `Workspace`."""
        found = Workspace.get(self, name, shape, dtype)
        found.reshape(-1).view(np.uint8)[...] = 0xFF
        return found


def wanted(call: Call, kind: str) -> list[Array]:
    """What the op means in double precision, on the operands as they were rounded: outputs, then updates."""
    doubled = [tuple(map(_double, arrays)) for arrays in (call.inputs, call.outputs, call.updates)]
    inputs, outputs, updates = doubled
    op_definition(kind).run(
        Call(
            np,
            call.attrs,
            inputs,
            outputs,
            updates,
            call.input_boxes,
            call.output_boxes,
            Workspace(np),
            call.number,
        )
    )
    return [*outputs, *updates]


def error_per_row(found: Array, right: Array) -> float:
    """The largest error in a row over the row's largest figure; infinite for what is no number.

    What is beyond the range of a half is infinite, and right.
    """
    width = right.shape[-1] if right.ndim else 1
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (found == right.astype(found.dtype)).reshape(-1, width)
        rows, wanted_rows = (np.asarray(array, np.float64).reshape(-1, width) for array in (found, right))
        errors = np.where(exact, 0.0, np.abs(rows - wanted_rows)).max(axis=-1)
    worst = errors / np.maximum(np.abs(wanted_rows).max(axis=-1), 1e-30)
    return float(np.where(np.isnan(worst), np.inf, worst).max())


def _double(array: Array) -> Array:
    if isinstance(array, Rows):
        spec = replace(array.spec, dtype=DType.FLOAT64)
        found = Rows(np, np.zeros(spec.nbytes, np.uint8), spec, array.box)
        if array.count > 0:  # what is still to be written is poisoned, the count with it
            found.hold(array.cells)[...] = array.rows
        return found
    return array.astype(np.float64) if array.dtype.kind not in "iu" else array.copy()


def _spec(array: Array, dtype: DType) -> TensorSpec:
    return TensorSpec(array.shape, dtype)


def _whole(spec: TensorSpec) -> Box:
    return tuple((0, size) for size in spec.shape)


def _poisoned(shape: Shape, dtype: np.dtype[Any]) -> Array:
    found = np.empty(shape, dtype)
    found.reshape(-1).view(np.uint8)[...] = 0xFF
    return found


def trials(kind: str) -> list[Trial]:
    """The trials of a kind."""
    return list(_MAKERS[kind](kind, np.random.default_rng(zlib.crc32(kind.encode()))))


def kinds() -> list[str]:
    """Kinds that there are trials of."""
    return sorted(_MAKERS)


Maker = Callable[[str, np.random.Generator], Iterator[Trial]]


def _matrix(rng: np.random.Generator, rows: int, width: int, *, outlier: float = OUTLIER) -> Array:
    """Normal figures, the first row far from zero, an outlier in the last one."""
    found = rng.standard_normal((rows, width))
    found[0] += OFFSET
    found[-1, width // 2] = outlier
    return found


def _norm(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    vectors = 2 if kind == "layer_norm" else 1
    for width in WIDTHS:
        vector = [1 + 0.1 * rng.standard_normal(width) for _ in range(vectors)]
        yield Trial(kind, (_matrix(rng, 3, width), *vector), attrs={"epsilon": 1e-6})
    x = _matrix(rng, 6, 40).reshape(2, 3, 40)
    yield Trial(kind, (x, *(rng.standard_normal(40) for _ in range(vectors))))


def _norm_grad(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """Rows that threads do not hold, then rows that teams of 32 to 256 threads hold."""
    centred = kind == "layer_norm_grad"
    for rows, width in ((3, 5), (70, 77), (3, 1031), (3, 4104), (100, 24), (37, 1032), (5, 2048)):
        x, gain, dy = (
            _matrix(rng, rows, width),
            1 + 0.1 * rng.standard_normal(width),
            rng.standard_normal((rows, width)),
        )
        mean = x.mean(axis=-1) if centred else np.zeros(rows)
        rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(axis=-1) + 1e-2)
        statistics = (mean, rstd) if centred else (rstd,)
        yield Trial(kind, (x, gain, *statistics, dy), wide=tuple(range(2, 2 + len(statistics))))


def _softmax(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for width in WIDTHS:
        yield Trial(kind, (_matrix(rng, 3, width),))


def _softmax_grad(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for width in WIDTHS:
        logits = 3 * rng.standard_normal((3, width))
        share = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        yield Trial(kind, (_matrix(rng, 3, width), share if kind == "softmax_grad" else np.log(share)))


def _sum_exp(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for width in WIDTHS:
        logits = _matrix(rng, 3, width)
        rest = (rng.standard_normal(3),) if kind == "sum_exp_grad" else ()
        yield Trial(kind, (logits, logits.max(axis=-1), *rest))


def _cross_entropy(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """Labels that do not count; classes of another rank, before and behind; smoothed; int32 and int64."""
    for width, smoothing, labels_in in ((77, 0.0, np.int32), (77, 0.1, np.int64), (2056, 0.1, np.int32)):
        for begin, classes in ((0, width), (50, width + 90)):
            rows = 300 if width == 77 else 3
            logits, labels = _matrix(rng, rows, width), rng.integers(0, classes, rows).astype(labels_in)
            labels[1] = -100
            lse = logits.max(axis=-1) + 2.0
            attrs = {"label_smoothing": smoothing, "classes": classes, "ignore_index": -100}
            boxes = (((0, rows), (begin, begin + width)), ((0, rows),), ((0, rows),))
            if kind == "cross_entropy":
                yield Trial(kind, (logits, labels, lse), attrs=attrs, input_boxes=boxes, results=((), ()))
            else:
                for grad in ((), (np.array(0.37),)):
                    operands = (logits, labels, lse, *grad)
                    yield Trial(kind, operands, attrs=attrs, input_boxes=boxes, results=(logits.shape,))


def _each(operands: int) -> Maker:
    def make(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
        attrs = {"limit": 1.2} if "bounded" in kind else {}
        for shape in ((1, 3), (7, 77), (2, 1028)):
            yield Trial(kind, tuple(_matrix(rng, *shape) for _ in range(operands)), attrs=attrs)

    return make


def _arithmetic(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """Of one shape; a bias, positions, a scalar, a figure per row, both spread, in runs that vectors fit and not."""
    pairs: tuple[tuple[Shape, Shape], ...] = (
        *(((1, 3), (1, 3)), ((7, 77), (7, 77)), ((2, 1028), (2, 1028)), ((), ())),
        *(((3, 5, 2056), (2056,)), ((2, 3, 77), (77,)), ((2, 5, 16), (5, 16)), ((16,), (3, 2, 16))),
        *(((7, 24), ()), ((9, 24), (9, 1)), ((4, 1, 40), (6, 40)), ((5,), (7, 1)), ((4, 5, 6), (5, 1))),
    )
    for shapes in pairs:
        x, y = (np.array(rng.standard_normal(shape)) for shape in shapes)
        x[...] += OFFSET if kind == "sub" else 0.0
        y[...] += np.copysign(0.5, y)  # away from zero, for quotients
        x.reshape(-1)[-1] = OUTLIER
        yield Trial(kind, (x, y))


def _add_n(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for count, shape in ((1, (3,)), (2, (7, 77)), (3, (2, 1028)), (32, (5, 8))):
        terms = tuple(rng.standard_normal(shape) for _ in range(count))
        terms[-1].reshape(-1)[0] = OUTLIER
        yield Trial(kind, (terms[0] + OFFSET, *terms[1:]))


def _dropout(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for shape, offsets in (((3, 77), (5, 9)), ((2, 3, 4, 8), (0, 7, 2, 24)), ((2056,), (0,)), ((2, 1), (1, 1))):
        box = tuple((begin, begin + size) for begin, size in zip(offsets, shape, strict=True))
        attrs = {"rate": 0.25, "seed": 2**63 + 11}
        rest = (rng.standard_normal(shape),) if kind == "add_dropped" else ()
        operands = (rng.standard_normal(shape) + OFFSET, *rest)
        yield Trial(kind, operands, attrs=attrs, input_boxes=(box,) * len(operands), number=41)


def _rotary(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    choices: tuple[Attrs, ...] = (
        {"base": 10000.0, "reverse": 0},
        {"base": 500000.0, "reverse": 1},
        {"frequencies": (0.9, 0.07, 0.001), "scale": 1.3, "reverse": 0},
    )
    shapes = ((2, 5, 3, 6), (1, 3, 70, 8), (2, 3, 2, 10))
    vectors = (
        (choices[0], (2, 3, 5, 32)),
        ({**choices[2], "frequencies": tuple(0.8**k for k in range(8))}, (1, 4, 3, 24)),
    )
    for attrs, shape in (*zip(choices, shapes, strict=True), *vectors):
        x = rng.standard_normal(shape)
        x[0, 0] += OFFSET
        box = tuple((begin, begin + size) for begin, size in zip((0, 100_000, 0, 0), shape, strict=True))
        yield Trial(kind, (x,), attrs=attrs, input_boxes=(box,), output_boxes=(box,))


def _reduction(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """Leading dims, in one and in several chunks; last dims, of rows that begin anywhere; all dims."""
    leading: tuple[tuple[Shape, Shape], ...] = (
        *(((3, 5), (0,)), ((70, 77), (0,)), ((4, 25, 24), (0, 1)), ((3, 5, 520), (0,)), ((1, 40, 1, 8), (1,))),
    )
    last: tuple[tuple[Shape, Shape], ...] = (
        *(
            ((3, 1), (1,)),
            ((5, 77), (1,)),
            ((3, 2056), (1,)),
            ((2, 3, 2061), (2,)),
            ((6, 4, 9), (1, 2)),
            ((7, 5), (0, 1)),
        ),
    )
    for shape, axes in (*(leading if kind == "reduce_sum" else ()), *last):
        x = _matrix(rng, math.prod(shape[:-1]), shape[-1]).reshape(shape)
        if kind == "reduce_max":
            x -= 3 * OUTLIER  # no figure is above zero
        yield Trial(kind, (x,), attrs={"axes": axes, "keepdims": int(len(axes) == 2)})


def _reshape(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for shape in ((), (7, 11), (2, 1028)):
        x = np.array(rng.standard_normal(shape) + OFFSET)
        yield Trial(kind, (x,), attrs={"shape": (1, *shape[::-1])})


def _log(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for shape in ((3,), (7, 77), (2, 1028)):
        yield Trial(kind, (rng.uniform(1e-3, 1e3, shape),))


def _square_sum(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    for rows, width in ((1, 1), (9, 1029), (2, 8192)):
        yield Trial(kind, (_matrix(rng, rows, width) / 100,))


def _amax(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """By one block and by several; the largest is below zero."""
    for shape in ((), (3,), (7, 77), (5, 4100)):
        x = np.array(rng.standard_normal(shape) / 3)
        x.reshape(-1)[-1] = -OUTLIER
        yield Trial(kind, (x,))


def _quantize_blocks(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """By powers of two, which divide exactly: blocks of rows, columns and both, the last ones shorter; one of zeros."""
    for dtype in (DType.FLOAT8_E4M3, DType.FLOAT8_E5M2, DType.FLOAT4_E2M1_X2):
        for blocks in ((1, 40), (16, 1), (16, 16), (5, 3)):
            x = np.stack([_matrix(rng, 37, 550), 3 * rng.standard_normal((37, 550))])
            x[1, :16, :16], x[1, 16:, 0] = 0, LARGEST_CODE[dtype]
            attrs = {"dtype": str(dtype), "scales": str(DType.FLOAT8_E8M0), "blocks": blocks}
            yield Trial(kind, (x,), attrs=attrs)


def _gather(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    """Indices of other ranks; the axis in front and in the middle; rows that no index takes, and one that many take."""
    for shape, axis, indices_in in (((9, 77), 0, np.int32), ((2, 9, 8), 1, np.int64), ((5, 2056), 0, np.int32)):
        indices = rng.integers(0, 14, (3, 100) if shape[1] == 77 else (2, 3)).astype(indices_in)
        indices[0, :2] = 6
        logical = tuple((4, 4 + size) if dim == axis else (0, size) for dim, size in enumerate(shape))
        taken = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
        attrs = {"axis": axis, "rows": 14}
        ids = tuple((0, size) for size in indices.shape)
        if kind == "gather":
            x = rng.standard_normal(shape) + OFFSET
            yield Trial(kind, (x, indices), attrs=attrs, input_boxes=(logical, ids), results=(taken,))
        else:
            dy = rng.standard_normal(taken)
            dy.reshape(-1)[3] = OUTLIER
            yield Trial(kind, (indices, dy), attrs=attrs, output_boxes=(logical,), results=(shape,))
    if kind == "gather_grad":  # more places than a block looks at at once
        indices = np.zeros(2**13 + 40, np.int32)
        indices[[3, 40, 41, 42, 8191, 8192, 8200]], indices[[2, 8230]] = 5, 6
        dy, attrs = rng.standard_normal((indices.size, 8)), {"axis": 0, "rows": 14}
        yield Trial(kind, (indices, dy), attrs=attrs, output_boxes=(((4, 8), (0, 8)),), results=((4, 8),))


def _adamw(kind: str, rng: np.random.Generator) -> Iterator[Trial]:
    attrs = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
    for shape, step in (
        ((3,), ()),
        ((7, 77), (np.array(5, np.int64),)),
        ((9001,), ()),
        ((4,), (np.array(0, np.int64),)),
    ):
        grad, param, mean = (rng.standard_normal(shape) for _ in range(3))
        grad.reshape(-1)[0] = OUTLIER
        state = (param + (OFFSET if len(shape) == 2 else 0), mean, rng.random(shape))
        yield Trial(kind, (grad, np.array(0.5), np.array(1e-2), *step), state, attrs, number=3)


_MAKERS: Mapping[str, Maker] = {
    "layer_norm": _norm,
    "rms_norm": _norm,
    "layer_norm_grad": _norm_grad,
    "rms_norm_grad": _norm_grad,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_grad": _softmax_grad,
    "log_softmax_grad": _softmax_grad,
    "sum_exp": _sum_exp,
    "sum_exp_grad": _sum_exp,
    "cross_entropy": _cross_entropy,
    "cross_entropy_grad": _cross_entropy,
    "square_sum": _square_sum,
    **dict.fromkeys(("add", "sub", "mul", "div"), _arithmetic),
    "add_n": _add_n,
    **dict.fromkeys(("reduce_sum", "reduce_max"), _reduction),
    "amax": _amax,
    "quantize_blocks": _quantize_blocks,
    "reshape": _reshape,
    "log": _log,
    **dict.fromkeys(("gelu", "gelu_exact", "silu", "accumulate"), _each(1)),
    **dict.fromkeys(("gelu_grad", "gelu_exact_grad", "silu_grad", "bounded_swiglu", "swiglu"), _each(2)),
    **dict.fromkeys(("bounded_swiglu_dgate", "bounded_swiglu_dup", "swiglu_grad"), _each(3)),
    **dict.fromkeys(("dropout", "add_dropped"), _dropout),
    "rotary": _rotary,
    "gather": _gather,
    "gather_grad": _gather,
    "adamw": _adamw,
}
