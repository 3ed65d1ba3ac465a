"""Copies: the identity, as an act of its own.

    copy        x -> x
    to_host     x -> x in the host's memory
    to_device   x in the host's memory -> x

A copy begins a new life: its readers keep the copy, not what it was made of, and what is done to get the copy where
they want it is done after it. Recomputing uses that as a fence (see `passes.recompute`). The other two move what is
offloaded (see `passes.offload`).

What goes round a ring of ranks is copied at every stop (see `passes.ring_attention`): with the attributes `chunks` and
`shift`, dim 1 may be split among as many ranks as there are chunks, rotated by the shift.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    int_attr,
    picks_from,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import on_rows, ragged_spec
from strategy.graph.ops.traits import Movement
from strategy.sbp.placement import MOVES, Space
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import DType, TensorSpec

TO_HOST, TO_DEVICE = (f"to_{space}" for space in (Space.HOST, Space.DEVICE))


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (x,) = inputs
    if "shift" in attrs:
        shift, chunks = int_attr(attrs, "shift"), int_attr(attrs, "chunks")
        expect(len(x.shape) > 1, "nothing goes round a ring", got=x.shape, expected="a dim 1")
        expect(0 <= shift < chunks, "a rotation goes round the ring", got=shift, expected=f"0 to {chunks - 1}")
    return (x,)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """A copy is where the original is, whatever its layout."""
    found = [*elementwise_signatures(inputs[0].shape, 1), *picks_from((0,), 1)]
    if attrs.get("chunks") == parts:
        rotated = Split(1, int_attr(attrs, "shift"))
        found.append(AxisSignature((rotated,), (rotated,)))
    return found


def _run(call: Call) -> None:
    call.xp.copyto(call.outputs[0], call.inputs[0])


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        builder.give(0, builder.output_gradient())


def _back(builder: GradientBuilder) -> None:
    """The gradient of what was moved is moved back."""
    if builder.wants(0):
        back = TO_DEVICE if builder.op.kind == TO_HOST else TO_HOST
        builder.give(0, builder.emit("d0", back, (builder.output_gradient(),)))


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _nbytes_moved(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return inputs[0].nbytes


_EXAMPLES = (
    Example((TensorSpec((7, 5)),)),
    Example((TensorSpec((4, 6), DType.INT32),), ranges={0: (0, 9)}),
    Example((TensorSpec((5, 7, 4)),), attrs={"shift": 1, "chunks": 3}),
    Example((ragged_spec((5, 4, 4, 7), 2),)),
)

OPS = (
    OpDef(
        "copy",
        _infer,
        _flop,
        _signatures,
        on_rows(_run),
        _gradient,
        ragged=True,
        rearranges=True,
        examples=_EXAMPLES,
    ),
    *(
        OpDef(
            kind,
            _infer,
            _flop,
            _signatures,
            on_rows(_run),
            _back,
            _nbytes_moved,
            ragged=True,
            cost=Movement(space),
            examples=_EXAMPLES[:2],
        )
        for kind, space in MOVES.items()
    ),
)
