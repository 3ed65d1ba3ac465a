"""Skipped steps: which update this is, decided once for all ranks, and the loss scale that follows from it.

A step whose gradients are not all finite must change nothing, on any rank. The squared norm of all gradients already
meets on every rank, and it is finite just if they are: that is the verdict. `count_step` turns it into one number that
the schedule and every update read: the updates done so far with this one, or 0 where this one is skipped.

    count_step    norm; applied             -> step
    adjust_scale  step; scale, good            the dynamic loss scale (Micikevicius et al. 2018, arXiv:1710.03740)
"""

from __future__ import annotations

from collections.abc import Callable

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, float_attr, int_attr, shapes
from strategy.sbp.tensor import DType, TensorSpec

STEP = TensorSpec((), DType.INT64)
"""Spec of the number of a step."""
SMALLEST_SCALE = 1.0
"""Where even this is too much, the gradients themselves do not fit."""


def without_step(inputs: Specs, count: int) -> Specs:
    """The first `count` inputs, of an op that may read the number of the step behind them."""
    return inputs[:count] if inputs[count:] == [STEP] or inputs[count:] == (STEP,) else inputs


def step_of(call: Call, position: int) -> int:
    """Which update this is, the first being 1, or 0 where it is skipped: input `position`, if given; else the act's."""
    return int(call.inputs[position]) if len(call.inputs) > position else call.number + 1


def unless_skipped(position: int) -> Callable[[Callable[[Call], None]], Callable[[Call], None]]:
    """Makes a meaning leave its variables alone, and write zeros, in a step that input `position` says to skip."""

    def decorate(run: Callable[[Call], None]) -> Callable[[Call], None]:
        def act(call: Call) -> None:
            if step_of(call, position):
                run(call)
            else:
                for output in call.outputs:
                    output[...] = 0

        return act

    return decorate


def _infer_count(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    fits = len(inputs) == 1 and inputs[0].shape == () and inputs[0].dtype.is_float and list(updates) == [STEP]
    expect(fits, "count_step operands differ", got=shapes((*inputs, *updates)), expected="a norm; one counter")
    return (STEP,)


def _infer_adjust(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    fits = list(inputs) == [STEP] and len(updates) == 2 and updates[0].shape == () and updates[1] == STEP
    expect(fits, "adjust_scale operands differ", got=shapes((*inputs, *updates)), expected="step; scale, counter")
    return ()


def _no_signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return []


def _run_count(call: Call) -> None:
    (norm,), (step,), (applied,) = call.inputs, call.outputs, call.updates
    finite = call.xp.isfinite(norm)
    applied += finite
    step[...] = applied * finite


def _run_adjust(call: Call) -> None:
    """After `period` good steps in a row the scale grows by `growth`; after a skipped one it shrinks by `backoff`."""
    xp, (step,), (scale, good) = call.xp, call.inputs, call.updates
    applied = step > 0
    good += 1
    good *= applied
    full = good == int_attr(call.attrs, "period")
    good *= ~full
    scale *= xp.where(full, float_attr(call.attrs, "growth"), 1.0)
    scale *= xp.where(applied, 1.0, float_attr(call.attrs, "backoff"))
    xp.maximum(scale, SMALLEST_SCALE, out=scale)


def _no_flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


_SCALAR = TensorSpec(())

OPS = (
    OpDef(
        "count_step",
        _infer_count,
        _no_flop,
        _no_signatures,
        _run_count,
        examples=(Example((_SCALAR,), (STEP,), ranges={1: (0, 9)}),),
    ),
    OpDef(
        "adjust_scale",
        _infer_adjust,
        _no_flop,
        _no_signatures,
        _run_adjust,
        examples=tuple(
            Example((STEP,), (_SCALAR, STEP), {"period": 2, "growth": 2.0, "backoff": 0.5}, {**ranges, 2: (0, 2)})
            for ranges in ({0: (0, 1), 1: (4.0, 9.0)}, {0: (1, 9), 1: (4.0, 9.0)})
        ),
    ),
)
