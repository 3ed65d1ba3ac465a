"""Casts to 8 bits with one scale per tensor, and what their scales are made of.

    amax            x -> []                              the largest magnitude
    quantize        x, amax[] -> codes, scale[]          x / scale in a dtype of 8 bits; scale = amax / largest(dtype)
                    with `observes` also -> []           the largest magnitude of x, for a later step's scale
    accumulate_max  figures [] ... -> [n]                the largest of each over the micro-batches of a step
    history_amax    history[n, steps] -> [] ...          the largest of each over the last steps
    record_amax     figures [n]; history[n, steps]       the newest steps first

What is beyond the largest code becomes the largest code (Micikevicius et al. 2022, arXiv:2209.05433, section 3). An
amax of zero scales by one, and so does one of a ragged tensor without rows, which is less. One that is no finite figure
makes codes that are none either, and leaves no trace in a history.
"""

from __future__ import annotations

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    MAX,
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    shapes,
)
from strategy.graph.ops.on_rows import ragged_spec
from strategy.graph.ops.scratch import scratch_like
from strategy.graph.ops.traits import PrecisionClass
from strategy.sbp.ragged import Rows
from strategy.sbp.sbp import B, Split
from strategy.sbp.tensor import LARGEST_CODE, DType, TensorSpec


def scale_of(xp: ArrayModule, amax: Array, largest: float) -> Array:
    """What codes up to `largest` are multiplied by, where the largest magnitude is `amax`.

    1 where that is zero, or so small that its scale would be: the codes are zero then.
    """
    scale = amax / largest
    return xp.where(scale <= 0, 1.0, scale).astype(amax.dtype)


def _infer_amax(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(inputs[0].dtype.is_float, "amax is of floats", got=inputs[0].dtype, expected="a float")
    return (TensorSpec((), inputs[0].dtype.wide),)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].size


def _signatures_amax(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(d),), (MAX,)) for d in range(len(inputs[0].shape))]


def _run_amax(call: Call) -> None:
    call.outputs[0][...] = _largest(call, call.inputs[0])


def _largest(call: Call, x: Array) -> Array:
    """The largest magnitude of a piece; of none, what counts as nothing."""
    figures = x.rows if isinstance(x, Rows) else x
    return call.xp.abs(figures).max() if figures.size else -np.inf


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    x, amax = inputs
    known = attrs["dtype"] in LARGEST_CODE
    expect(known, "no dtype of 8 bits", got=attrs["dtype"], expected=" or ".join(LARGEST_CODE))
    fits = x.dtype.is_float and amax == TensorSpec((), x.dtype.wide)
    expect(fits, "quantize shapes do not compose", got=shapes(inputs), expected="x[...], amax[]")
    codes = TensorSpec(x.shape, DType(str(attrs["dtype"])), x.ragged)
    return (codes, amax, amax) if int_attr(attrs, "observes") else (codes, amax)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    seen = (MAX,) * (len(outputs) - 2)
    return [AxisSignature((Split(d), B), (Split(d), B, *seen)) for d in range(len(inputs[0].shape))]


def _flop_quantize(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return (2 + int_attr(attrs, "observes")) * inputs[0].size


def _run(call: Call) -> None:
    """The codes, written before they are rounded (see `strategy.graph.ops.half_precision`)."""
    xp, (x, amax), (codes, scale, *seen) = call.xp, call.inputs, call.outputs
    dtype = DType(str(call.attrs["dtype"]))
    largest = LARGEST_CODE[dtype]
    scale[...] = scale_of(xp, amax, largest)
    given, made = (x.rows, codes.hold(x.cells)) if isinstance(x, Rows) else (x, codes)
    scaled = call.workspace.get("scaled", given.shape, given.dtype)
    xp.divide(given, scale, out=scaled)
    xp.clip(scaled, -largest, largest, out=made)
    for figure in seen:
        figure[...] = _largest(call, x)


def _scalars(inputs: Specs) -> bool:
    return bool(inputs) and all(spec == inputs[0] and spec.shape == () and spec.dtype.is_float for spec in inputs)


def _infer_accumulate(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    expect(_scalars(inputs), "accumulate_max needs scalars of one dtype", got=shapes(inputs), expected="[], ...")
    return (TensorSpec((len(inputs),), inputs[0].dtype),)


def _flop_accumulate(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return len(inputs)


def _signatures_accumulate(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((MAX,) * len(inputs), (MAX,))]


def _run_accumulate(call: Call) -> None:
    total = call.outputs[0]
    for i, figure in enumerate(call.inputs):
        total[i] = figure if call.first_of_piece else call.xp.maximum(total[i], figure)


def _infer_history(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    fits = len(inputs[0].shape) == 2 and inputs[0].dtype.is_float
    expect(fits, "history_amax shapes do not compose", got=shapes(inputs), expected="history[n, steps]")
    return (TensorSpec((), inputs[0].dtype),) * inputs[0].shape[0]


def _signatures_history(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(1),), (MAX,) * len(outputs)), AxisSignature((MAX,), (MAX,) * len(outputs))]


def _run_history(call: Call) -> None:
    for row, output in zip(call.inputs[0], call.outputs, strict=True):
        output[...] = row.max() if row.size else -np.inf


def _infer_record(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (figures,), (history,) = inputs, updates
    fits = len(figures.shape) == 1 and len(history.shape) == 2
    fits = fits and (figures.shape[0], figures.dtype) == (history.shape[0], history.dtype)
    expect(fits, "record_amax shapes do not compose", got=shapes((*inputs, *updates)), expected="[n]; [n, steps]")
    return ()


def _signatures_record(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [AxisSignature((Split(0),), (), (Split(0),))]


def _run_record(call: Call) -> None:
    xp, (figures,), (history,) = call.xp, call.inputs, call.updates
    newest = xp.where(xp.isfinite(figures), figures, history.max(axis=1))
    history[:, 1:] = history[:, :-1].copy()
    history[:, 0] = newest


_X, _AMAX, _HISTORY = TensorSpec((7, 5)), TensorSpec(()), TensorSpec((5, 4))
_ROWS = ragged_spec((5, 4, 4, 7), 2)
_POSITIVE = (0.5, 3.0)

OPS = (
    OpDef(
        "amax",
        _infer_amax,
        _flop,
        _signatures_amax,
        _run_amax,
        ragged=True,
        precision=PrecisionClass.CONVERTS,
        examples=(Example((_X,)), Example((TensorSpec((4, 6, 5)),)), Example((TensorSpec(()),)), Example((_ROWS,))),
    ),
    OpDef(
        "quantize",
        _infer,
        _flop_quantize,
        _signatures,
        _run,
        ragged=True,
        piecewise=True,
        precision=PrecisionClass.CONVERTS,
        scratch=scratch_like(0),
        examples=tuple(
            Example((x, _AMAX), attrs={"dtype": str(dtype), "observes": observes}, ranges={1: _POSITIVE})
            for x, dtype, observes in (
                (_X, DType.FLOAT8_E4M3, 0),
                (_X, DType.FLOAT8_E5M2, 0),
                (_X, DType.FLOAT8_E4M3, 1),
                (_ROWS, DType.FLOAT8_E5M2, 1),
            )
        ),
    ),
    OpDef(
        "accumulate_max",
        _infer_accumulate,
        _flop_accumulate,
        _signatures_accumulate,
        _run_accumulate,
        accumulates=True,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_AMAX,)), Example((_AMAX,) * 3)),
    ),
    OpDef(
        "history_amax",
        _infer_history,
        _flop,
        _signatures_history,
        _run_history,
        precision=PrecisionClass.SINGLE,
        examples=(Example((_HISTORY,), ranges={0: _POSITIVE}),),
    ),
    OpDef(
        "record_amax",
        _infer_record,
        _flop,
        _signatures_record,
        _run_record,
        precision=PrecisionClass.SINGLE,
        examples=(Example((TensorSpec((5,)),), (_HISTORY,), ranges={0: _POSITIVE, 1: _POSITIVE}),),
    ),
)
