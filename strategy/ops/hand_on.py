"""Hand on: what a rank passes to the next of a ring, as a value of its own.

    hand_on   x -> the same

Along an axis of as many ranks as there are `chunks`, dim 1 may be rotated by `shift`. Each value of a chain so has a
home one further round the ring, and is free as soon as the next has taken it over.
"""

from __future__ import annotations

from strategy.graph import Attrs
from strategy.ops.base import (
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    int_attr,
    linear_in,
)
from strategy.sbp import Split
from strategy.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    shift, chunks = int_attr(attrs, "shift"), int_attr(attrs, "chunks")
    expect(len(x.shape) > 1, "nothing to hand on", got=x.shape, expected="a dim 1")
    expect(0 <= shift < chunks, "a rotation goes round the ring", got=shift, expected=f"0 to {chunks - 1}")
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    found = [*elementwise_signatures(inputs[0].shape, 1), linear_in([0], 1)]
    if parts == int_attr(attrs, "chunks"):
        rotated = Split(1, int_attr(attrs, "shift"))
        found.append(AxisSignature((rotated,), (rotated,)))
    return found


def _run(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0]


_EXAMPLES = tuple(
    Example((TensorSpec(shape),), attrs={"shift": 1, "chunks": chunks})
    for shape, chunks in (((4, 8), 4), ((5, 7, 4), 3))
)

OPS = (OpDef("hand_on", _infer, lambda inputs, outputs, attrs: 0, _signatures, _run, examples=_EXAMPLES),)
