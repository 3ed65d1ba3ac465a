"""Learning rate: a scalar of the step, so that every update reads the same figure and no two ranks can differ.

The number of the act is the step, and a resumed run goes on counting where the checkpoint ends; where steps may be
skipped, it reads the number instead (see `skip`), and is zero in a skipped step.
"""

from __future__ import annotations

import math
from enum import StrEnum

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, expect, float_attr
from strategy.graph.ops.skipped_steps import step_of, without_step
from strategy.sbp.tensor import DType, TensorSpec


class Decay(StrEnum):
    """What the rate does after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"
    POLYNOMIAL = "polynomial"
    INVERSE_SQRT = "inverse_sqrt"
    STEP = "step"


def rate_at(step: int, attrs: Attrs) -> float:
    """The learning rate of a step, the first being 0.

    Attributes, with w = `warm_up` and n = `steps`:
        `lr` is the peak; over the first w steps the rate rises linearly, lr / w in the first and lr in the last.
        `final` is the share of `lr` at which `cosine` (Loshchilov and Hutter 2017, arXiv:1608.03983, equation 5) and
            `polynomial` (of degree `power`; 1 is a straight line) end after n steps, warm-up included, and stay.
        `inverse_sqrt` falls as lr sqrt(w / step) (Vaswani et al. 2017, arXiv:1706.03762, equation 3).
        `step` multiplies by `factor` every n steps after the warm-up.
    """
    lr, warm_up, steps = float_attr(attrs, "lr"), int(float_attr(attrs, "warm_up")), int(float_attr(attrs, "steps"))
    if step < warm_up:
        return lr * (step + 1) / warm_up
    final = float_attr(attrs, "final")
    done = min(1.0, (step - warm_up) / max(1, steps - warm_up))
    match Decay(str(attrs["decay"])):
        case Decay.CONSTANT:
            return lr
        case Decay.COSINE:
            return lr * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)
        case Decay.POLYNOMIAL:
            return lr * (final + (1 - final) * math.pow(1 - done, float_attr(attrs, "power")))
        case Decay.INVERSE_SQRT:
            return lr * math.sqrt(max(1, warm_up) / (step + 1))
        case Decay.STEP:
            return lr * math.pow(float_attr(attrs, "factor"), (step - warm_up) // max(1, steps))


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rest = without_step(inputs, 0)
    expect(not rest, "learning_rate reads nothing else", got=len(rest), expected="the number of the step, or no input")
    return (TensorSpec((), DType(str(attrs["dtype"]))),)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return []


def _run(call: Call) -> None:
    step = step_of(call, 0)
    call.outputs[0][...] = rate_at(step - 1, call.attrs) if step else 0.0


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _example(decay: Decay) -> Example:
    return Example(
        (),
        attrs={
            "dtype": "float32",
            "decay": str(decay),
            "lr": 0.1,
            "warm_up": 2,
            "steps": 5,
            "final": 0.1,
            "power": 2.0,
            "factor": 0.5,
        },
    )


OPS = (OpDef("learning_rate", _infer, _flop, _signatures, _run, examples=tuple(map(_example, Decay))),)
