"""`repeat`: a step value given anew with every micro-batch.

What converts its output converts once per micro-batch: so are parameters gathered where they are used, and let go.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, elementwise_signatures, picks_from
from strategy.sbp.tensor import TensorSpec


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 1), *picks_from((0,), 1)]


def _run(call: Call) -> None:
    call.outputs[0][...] = call.inputs[0]


OPS = (
    OpDef(
        "repeat",
        _infer,
        _flop,
        _signatures,
        _run,
        repeats=True,
        piecewise=True,
        examples=(Example((TensorSpec((7, 5)),)), Example((TensorSpec(()),))),
    ),
)
