"""Dynamic loss scale: what fp16 needs, whose smallest figure is 6e-8 (Micikevicius et al. 2018, arXiv:1710.03740).

The loss that is differentiated is the model's times a variable, so all gradients are scaled. They are divided by it
where they are divided by the count, in the one factor that all updates read: after accumulation, before the clip, and
without another pass over them. Whether the step counts, and what the scale is next, `strategy.graph.ops.skipped_steps`
says.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Phase, Role, Value
from strategy.graph.ops.skipped_steps import STEP as STEP_SPEC
from strategy.passes.updates import STEP
from strategy.sbp.tensor import Rate, TensorSpec


@dataclass(frozen=True, slots=True)
class LossScale:
    """The loss that is differentiated, and the variables: the scale, and the good steps since it changed."""

    loss: str
    scale: str
    good: str


def scaled_loss(builder: GraphBuilder, loss: str, initial: float) -> LossScale:
    """The loss times a new variable that starts as `initial`."""
    spec = TensorSpec((), builder.spec(loss).dtype)
    scale = builder.declare(Value(f"{loss}:scale", spec, Rate.STEP, Role.VARIABLE, f"constant({initial!r})"))
    good = builder.declare(Value(f"{loss}:good", STEP_SPEC, Rate.STEP, Role.VARIABLE, "zeros"))
    return LossScale(builder.add(builder.derived(loss, "scaled"), "mul", (loss, scale))[0], scale, good)


def scaled_count(builder: GraphBuilder, count: str, found: LossScale) -> str:
    """What the summed gradients of a scaled loss are divided by."""
    return builder.add(builder.derived(count, "scaled"), "mul", (count, found.scale), phase=Phase.UPDATE)[0]


def add_adjustment(builder: GraphBuilder, found: LossScale, figures: Attrs) -> None:
    """Append the update of the scale; `figures` are the attributes of `adjust_scale`."""
    line, updates = builder.derived(found.scale, "adjust"), (found.scale, found.good)
    builder.add(line, "adjust_scale", (STEP,), updates=updates, attrs=figures, phase=Phase.UPDATE)
