"""Part of acceptance: acts on ragged rows, of experts that drop nothing, whose count only the device knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.gpu_acceptance.bench import SMALL, Bench, Sizes
from executor.gpu_acceptance.kernels import judged
from executor.gpu_acceptance.outcome import Figures
from executor.gpu_acceptance.samples import TOLERANCES, row_error
from executor.runtime.kernels.gpu import ragged
from executor.runtime.kernels.gpu.program import ELEMENTS
from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.tensor import Box, DType, Ragged, TensorSpec

EXPERTS, CHOICES = 8, 2
OPERANDS: Mapping[Callable[[Call], object], str] = {
    ragged.gelu: "r",
    ragged.gelu_grad: "rr",
    ragged.silu: "r",
    ragged.silu_grad: "rr",
    ragged.swiglu: "rr",
    ragged.swiglu_grad: "rrr",
    ragged.bounded_swiglu: "rr",
    ragged.bounded_swiglu_dgate: "rrr",
    ragged.bounded_swiglu_dup: "rrr",
    ragged.mul: "rr",
    ragged.add_n: "rr",
    ragged.add_by_expert: "rb",
    ragged.sum_by_expert: "r",
    ragged.dropless_dispatch: "xcw",
    ragged.dropless_combine: "rcw",
    ragged.dropless_inner: "rcx",
    ragged.grouped_matmul: "rm",
    ragged.grouped_matmul_tn: "rr",
}
"""Launches of a kind -> its operands: rows, tokens (x), choices, weights of choices, biases and matrices of experts."""
_PRODUCTS = frozenset({ragged.grouped_matmul, ragged.grouped_matmul_tn})
_plain_attrs = {"transpose": 0}
_bounded_attrs = {"limit": 1.2}
_ATTRS: Mapping[Callable[[Call], object], Attrs] = {
    ragged.dropless_dispatch: {"experts": EXPERTS, "imbalance": 1.0, "room": 0.0},
    ragged.grouped_matmul: _plain_attrs,
    ragged.bounded_swiglu: _bounded_attrs,
    ragged.bounded_swiglu_dgate: _bounded_attrs,
    ragged.bounded_swiglu_dup: _bounded_attrs,
}


@dataclass(frozen=True, slots=True)
class Routed:
    """Operands of an act on the host, and what it makes."""

    inputs: tuple[Array, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Attrs

    @property
    def rows(self) -> int:
        """That its first operand has, if it has rows."""
        return self.inputs[0].count if isinstance(self.inputs[0], Rows) else 0


def experts(bench: Bench) -> Figures:
    """Every act on rows in every element type: the error against double precision; seconds, and FLOPs of products."""
    acts: dict[str, dict[str, Any]] = {}
    for element in ELEMENTS:
        for launches in OPERANDS:
            error = _error(bench, launches.__name__, routed(launches, SMALL, element, seed=1))
            acts[f"{launches.__name__} {element}"] = {"error": error, "most": TOLERANCES[element]}
    for launches in OPERANDS:
        of = routed(launches, bench.sizes, DType.BFLOAT16, seed=2)
        bound = bench.acts.bind(op_definition(launches.__name__), _call_on(bench, of))
        figures = acts[f"{launches.__name__} bfloat16"]
        figures["seconds"] = bench.seconds(bound.run)
        if launches in _PRODUCTS:
            figures["flop_per_s"] = 2 * of.rows * bench.sizes.width**2 / figures["seconds"]
    return judged({"acts": acts}, acts)


def routed(launches: Callable[[Call], object], sizes: Sizes, element: DType, seed: int) -> Routed:
    """An act on the rows of tokens that chose some experts each, the first ones more often."""
    rng, width = np.random.default_rng(seed), sizes.width
    odds = rng.random((1, sizes.rows, EXPERTS)) * np.linspace(1, 3, EXPERTS)
    chosen = np.argsort(odds, axis=-1)[..., :CHOICES].astype(np.int32)
    spec = TensorSpec((EXPERTS, 1, sizes.rows, width), element, Ragged(CHOICES, (EXPERTS, 1, sizes.rows)))
    cells = np.sort((chosen.astype(np.int64) * sizes.rows + np.arange(sizes.rows)[:, None]).reshape(-1))
    shapes = {
        "x": (1, sizes.rows, width),
        "w": chosen.shape,
        "b": (EXPERTS, width),
        "m": (EXPERTS, width, width),
        "r": (len(cells), width),
    }
    inputs, specs = [], []
    for letter in OPERANDS[launches]:
        # Above zero: a product of few choices has no larger one beside it that errors could be measured by.
        drawn = chosen if letter == "c" else rng.uniform(0.2, 2.0, shapes[letter]).astype(element.numpy)
        inputs.append(_held(spec, cells, drawn) if letter == "r" else drawn)
        specs.append(spec if letter == "r" else TensorSpec(drawn.shape, DType(str(drawn.dtype))))
    attrs = _ATTRS.get(launches, {})
    return Routed(tuple(inputs), tuple(op_definition(launches.__name__).infer(specs, (), attrs)), attrs)


def _held(spec: TensorSpec, cells: Array, rows: Array) -> Rows:
    found: Rows = piece_of(np, spec, _whole(spec))
    found.hold(cells)[...] = rows
    return found


def _whole(spec: TensorSpec) -> Box:
    return tuple((0, size) for size in spec.shape)


def _call_on(bench: Bench, of: Routed) -> Call:
    """The act over arrays on the device."""
    xp = bench.xp
    inputs = tuple(
        Rows(xp, xp.asarray(one.raw), one.spec, one.box) if isinstance(one, Rows) else xp.asarray(one)
        for one in of.inputs
    )
    outputs = tuple(piece_of(xp, spec, _whole(spec), xp.empty(spec.nbytes, "uint8")) for spec in of.outputs)
    return Call(xp, of.attrs, inputs, outputs, (), (), (), Workspace(xp))


def _error(bench: Bench, kind: str, of: Routed) -> float:
    """The largest error of an act on the device over the row's largest figure; infinite where rows are others."""
    call = _call_on(bench, of)
    bench.acts.bind(op_definition(kind), call).run()
    bench.acts.flush()
    wide = [TensorSpec(spec.shape, DType.FLOAT64, spec.ragged) for spec in of.outputs]
    right = tuple(piece_of(np, spec, _whole(spec)) for spec in wide)
    op_definition(kind).run(Call(np, of.attrs, tuple(map(_double, of.inputs)), right, (), (), (), Workspace(np)))
    return max(_piece_error(*pair) for pair in zip(call.outputs, right, strict=True))


def _double(piece: Array) -> Array:
    if isinstance(piece, Rows):
        spec = TensorSpec(piece.spec.shape, DType.FLOAT64, piece.spec.ragged)
        return _held(spec, piece.cells, piece.rows.astype(np.float64))
    return piece if piece.dtype.kind in "iu" else piece.astype(np.float64)


def _piece_error(found: Array, right: Array) -> float:
    if not isinstance(found, Rows):
        return row_error(found.get(), right)
    held = Rows(np, found.raw.get(), found.spec, found.box)
    if held.count != right.count or not np.array_equal(held.cells, right.cells):
        return float("inf")
    return row_error(held.rows, right.rows)
