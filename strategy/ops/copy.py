"""Copies: the identity, as an act of its own.

    copy   x -> x

A copy begins a new life: its readers keep the copy, not what it was made of, and what is done to get the copy where
they want it is done after it. Recomputing uses that as a fence (see `passes.recompute`).
"""

from __future__ import annotations

from strategy.graph import Attrs
from strategy.ops.base import AxisSignature, Call, Example, OpDef, Specs, elementwise_signatures, picks_from
from strategy.ops.gradient import GradientBuilder
from strategy.tensor import DType, TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """A copy is where the original is, whatever its layout."""
    return [*elementwise_signatures(inputs[0].shape, 1), *picks_from((0,), 1)]


def _run(call: Call) -> None:
    call.xp.copyto(call.outputs[0], call.inputs[0])


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        builder.give(0, builder.output_gradient())


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


_EXAMPLES = (Example((TensorSpec((7, 5)),)), Example((TensorSpec((4, 6), DType.INT32),), ranges={0: (0, 9)}))

OPS = (OpDef("copy", _infer, _flop, _signatures, _run, _gradient, examples=_EXAMPLES),)
