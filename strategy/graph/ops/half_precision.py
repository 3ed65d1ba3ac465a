"""Kernels of fp16, bf16 and fp8: compute in fp32, round once; the same for all kinds of ops.

Operands are widened to single precision, the op runs on them, and every element of a result is rounded once. So a
half-precision matrix product accumulates in float32, as the matrix units of GPUs do, and no op's author thinks of
rounding. Codes of 4 bits, two to a byte, are handed over as they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from strategy.graph.ops.base import Array, Call, OpDef
from strategy.graph.ops.scratch import ScratchSizes
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import DType, TensorSpec

_HALF_NBYTES = 2
"""Of the widest elements that are widened; all dtypes of so few are floats, but for bytes that hold two codes."""


def run_act(definition: OpDef, call: Call) -> None:
    """Run one act of an op; figures beyond the range of a half become infinite, which is no error here."""
    act_of(definition, call)()


def act_of(definition: OpDef, call: Call) -> Callable[[], None]:
    """The same as what can be called again and again, on the arrays that `call` has now."""
    narrow = any(array.dtype.itemsize <= _HALF_NBYTES for array in (*call.inputs, *call.outputs, *call.updates))
    return partial(_run_widened, definition, call) if narrow else partial(definition.run, call)


def _run_widened(definition: OpDef, call: Call) -> None:
    arrays = (*call.inputs, *call.outputs, *call.updates)
    wide = "float64" if any(array.dtype == "float64" for array in arrays) else "float32"
    with np.errstate(over="ignore", invalid="ignore"):
        inputs = _widened(call, "input", call.inputs, wide, filled=True)
        # An accumulator goes on with what its output holds.
        outputs = _widened(call, "output", call.outputs, wide, filled=definition.accumulates)
        updates = _widened(call, "update", call.updates, wide, filled=True)
        definition.run(replace(call, inputs=inputs, outputs=outputs, updates=updates))
        results = zip((*call.outputs, *call.updates), (*outputs, *updates), strict=True)
        for narrow, result in results:
            if narrow is not result:
                _copy(result, narrow)


def scratch_of_act(definition: OpDef, call: Call) -> ScratchSizes:
    """What `run_act` asks for: wide copies of narrow operands, and what the op asks for on them."""
    arrays = (*call.inputs, *call.outputs, *call.updates)
    wide = DType("float64" if any(array.dtype == "float64" for array in arrays) else "float32")
    specs = [TensorSpec(array.shape, _wide_dtype(array, wide)) for array in arrays]
    copies = tuple(
        spec.nbytes for spec, array in zip(specs, arrays, strict=True) if array.dtype.itemsize <= _HALF_NBYTES
    )
    inputs, outputs = specs[: len(call.inputs)], specs[len(call.inputs) :][: len(call.outputs)]
    of_op = ScratchSizes() if definition.scratch is None else definition.scratch(inputs, outputs, call.attrs)
    return ScratchSizes((*copies, *of_op.anew), of_op.kept)


def _wide_dtype(array: Array, wide: DType) -> DType:
    return wide if array.dtype.itemsize <= _HALF_NBYTES else DType(str(array.dtype))


def _widened(call: Call, role: str, arrays: Sequence[Array], wide: str, *, filled: bool) -> tuple[Array, ...]:
    """The arrays; floats of 16 bits and fewer replaced by wider scratch."""
    found = list(arrays)
    for position, array in enumerate(arrays):
        if array.dtype.itemsize <= _HALF_NBYTES and array.dtype != "uint8":
            found[position] = _wide_like(call, f"wide {role} {position}", array, wide)
            if filled:
                _copy(array, found[position])
    return tuple(found)


def _wide_like(call: Call, name: str, array: Array, wide: str) -> Array:
    if not isinstance(array, Rows):
        return call.workspace.get(name, array.shape, wide)
    spec = replace(array.spec, dtype=DType(wide))
    return Rows(call.xp, call.workspace.get(name, (spec.nbytes,), "uint8"), spec, array.box)


def _copy(source: Array, target: Array) -> None:
    if isinstance(source, Rows):
        target.hold(source.cells)[...] = source.rows
    else:
        target[...] = source
