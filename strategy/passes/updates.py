"""Updates: from the gradients of a step to the ops that rewrite the parameters, for every optimiser.

All gradients share one factor: the mean over the count, and the clip of the global norm. Squares are taken of summed
gradients only, for a sum of squares of terms is another figure: `square_sum` has no signature that reads P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Lineage, Phase, Role, Value
from strategy.graph.ops import skipped_steps as skip
from strategy.passes.parameter_groups import ParameterGroup, check_groups, group_of
from strategy.sbp.tensor import Rate, TensorSpec


class Optimizer(StrEnum):
    """The rule by which gradients become updates."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"
    ADAGRAD = "adagrad"
    LAMB = "lamb"
    MUON = "muon"


@dataclass(frozen=True, slots=True)
class Rule:
    """An optimiser with its figures; `schedule` are the attributes of `learning_rate`.

    Where `skips`, a step whose gradients are not finite changes nothing.
    """

    optimizer: Optimizer
    figures: Attrs
    schedule: Attrs
    weight_decay: float
    max_norm: float
    skips: bool = False
    groups: tuple[ParameterGroup, ...] = ()

    def of(self, name: str) -> Rule:
        """The rule by which a parameter is trained."""
        number = group_of(name, self.groups)
        if number is None:
            return self
        group = self.groups[number]
        decay = self.weight_decay if group.weight_decay is None else group.weight_decay
        optimizer = Optimizer(group.optimizer) if group.optimizer else self.optimizer
        return replace(self, optimizer=optimizer, weight_decay=decay)

    def decay(self, name: str, dims: int) -> float:
        """The weight decay of a parameter: that of its group, else for matrices alone."""
        number = group_of(name, self.groups)
        given = number is not None and self.groups[number].weight_decay is not None
        return self.of(name).weight_decay if given or dims > 1 else 0.0


@dataclass(frozen=True, slots=True)
class Trained:
    """A parameter, its gradient summed over the step, and the repeated layer that it belongs to."""

    name: str
    gradient: str
    layer: int | None


@dataclass(frozen=True, slots=True)
class Shared:
    """What all updates read: learning rates by group, the last for the others; `step` where steps may be skipped."""

    factor: str
    lrs: tuple[str, ...]
    step: tuple[str, ...]

    def lr(self, name: str, rule: Rule) -> str:
        """The learning rate of a parameter."""
        number = group_of(name, rule.groups)
        return self.lrs[-1 if number is None else number]


STEP = "step"
"""Name of the value that `count_step` writes."""
_STATES = {
    Optimizer.ADAM: ("m", "v"),
    Optimizer.ADAMW: ("m", "v"),
    Optimizer.ADAGRAD: ("sum",),
}
_FIGURES = {
    Optimizer.SGD: ("momentum", "nesterov"),
    Optimizer.ADAM: ("beta1", "beta2", "epsilon"),
    Optimizer.ADAMW: ("beta1", "beta2", "epsilon"),
    Optimizer.ADAGRAD: ("epsilon",),
}


def add_updates(builder: GraphBuilder, trained: Sequence[Trained], count: str, rule: Rule) -> str:
    """Append clip, learning rate and the updates of all parameters; gives the norm of the mean gradient.

    `count` is what the summed gradients are divided by.
    """
    check_groups(rule.groups, [parameter.name for parameter in trained])
    stacks = _stacks(builder, trained, rule)
    stacked = {member.name for members in stacks.values() for member in members}
    single = [parameter for parameter in trained if parameter.name not in stacked]
    gradients = [*single, *(Trained(name, name, None) for name in stacks)]
    factor, norm = _clip(builder, gradients, count, rule)
    step = (_count_step(builder, norm),) if rule.skips else ()
    lr = builder.add("learning_rate", "learning_rate", step, attrs=rule.schedule, phase=Phase.UPDATE)[0]
    lrs = [
        builder.add(Lineage(f"{lr}:{number}"), "scale", (lr,), attrs={"factor": group.lr_scale}, phase=Phase.UPDATE)[0]
        for number, group in enumerate(rule.groups)
    ]
    shared = Shared(factor, (*lrs, lr), step)
    for parameter in single:
        _update(builder, parameter, shared, rule.of(parameter.name))
    for stack, members in stacks.items():
        _update_stack(builder, stack, members, shared, rule)
    return norm


def _count_step(builder: GraphBuilder, norm: str) -> str:
    """The verdict on a step: its number among the steps that count, or 0."""
    applied = builder.declare(Value(f"{STEP}:applied", skip.STEP, Rate.STEP, Role.VARIABLE, "zeros"))
    return builder.add(STEP, "count_step", (norm,), updates=(applied,), phase=Phase.UPDATE)[0]


def _stacks(builder: GraphBuilder, trained: Sequence[Trained], rule: Rule) -> dict[str, list[Trained]]:
    """Gradients of the matrices of repeated layers that Muon trains, stacked by shape and group: stack -> its members.

    Embeddings, heads and vectors are none of Muon's, says Jordan's post.
    """
    by_shape: dict[tuple[TensorSpec, int | None], list[Trained]] = {}
    for parameter in trained:
        spec, muon = builder.spec(parameter.name), rule.of(parameter.name).optimizer is Optimizer.MUON
        if muon and len(spec.shape) == 2 and parameter.layer is not None:
            by_shape.setdefault((spec, group_of(parameter.name, rule.groups)), []).append(parameter)
    return {
        builder.add(line, "stack", [m.gradient for m in members], phase=Phase.UPDATE)[0]: members
        for members in by_shape.values()
        for line in (builder.derived(members[0].name, "stack"),)
    }


def _clip(builder: GraphBuilder, gradients: Sequence[Trained], count: str, rule: Rule) -> tuple[str, str]:
    """The factor of all gradients and the norm.

    Squares are summed layer by layer first, so that a pipeline sends one number per layer between stages.
    """
    by_layer: dict[int | None, list[str]] = {}
    for gradient in gradients:
        line, layer = builder.derived(gradient.name, "square", gradient.layer), gradient.layer
        square = builder.add(line, "square_sum", (gradient.gradient,), phase=Phase.UPDATE, layer=layer)[0]
        by_layer.setdefault(layer, []).append(square)
    sums = []
    for layer, squares in by_layer.items():
        line = Lineage("outer:square") if layer is None else Lineage(f"layers.{layer}:square", "layers.*:square")
        sums.append(builder.add(line, "add_n", squares, phase=Phase.UPDATE, layer=layer)[0])
    square = builder.add("square", "add_n", sums, phase=Phase.UPDATE)[0]
    attrs = {"max_norm": rule.max_norm}
    factor, norm = builder.add("clip", "clip_scale", (square, count), labels=("norm",), attrs=attrs, phase=Phase.UPDATE)
    return factor, norm


def _update(builder: GraphBuilder, parameter: Trained, shared: Shared, rule: Rule) -> None:
    """The update of one parameter by a rule that works element by element, or by LAMB."""
    if rule.optimizer is Optimizer.LAMB:
        _update_lamb(builder, parameter, shared, rule)
        return
    kind = Optimizer.ADAMW if rule.optimizer is Optimizer.MUON else rule.optimizer
    names = _STATES.get(kind, ("velocity",) if rule.figures["momentum"] else ())
    attrs = {key: rule.figures[key] for key in _FIGURES[kind]}
    builder.add(
        builder.derived(parameter.name, kind, parameter.layer),
        str(kind),
        (parameter.gradient, shared.factor, shared.lr(parameter.name, rule), *shared.step),
        updates=(parameter.name, *_states(builder, parameter.name, names)),
        attrs={**attrs, "weight_decay": _decay(builder, parameter.name, rule)},
        phase=Phase.UPDATE,
        layer=parameter.layer,
    )


def _update_lamb(builder: GraphBuilder, parameter: Trained, shared: Shared, rule: Rule) -> None:
    name, layer = parameter.name, parameter.layer
    attrs = {key: rule.figures[key] for key in ("beta1", "beta2", "epsilon")}
    direction = builder.add(
        builder.derived(name, "direction", layer),
        "lamb_direction",
        (parameter.gradient, shared.factor, name, *shared.step),
        updates=tuple(_states(builder, name, ("m", "v"))),
        attrs={**attrs, "weight_decay": _decay(builder, name, rule)},
        phase=Phase.UPDATE,
        layer=layer,
    )[0]
    squares = [
        builder.add(builder.derived(name, label, layer), "square_sum", (tensor,), phase=Phase.UPDATE, layer=layer)[0]
        for label, tensor in (("own_square", name), ("direction_square", direction))
    ]
    line, operands = builder.derived(name, "lamb", layer), (direction, *squares, shared.lr(name, rule))
    builder.add(line, "lamb_apply", operands, updates=(name,), phase=Phase.UPDATE, layer=layer)


def _update_stack(builder: GraphBuilder, stack: str, members: Sequence[Trained], shared: Shared, rule: Rule) -> None:
    """Momentum and directions of stacked matrices, then the descent of each.

    A matrix [a, b] moves by sqrt(max(1, b / a)) times its direction: ours are [inputs, outputs], so that is the ratio
    of outputs to inputs of Jordan's post.
    """
    attrs = {"momentum": rule.figures["momentum"], "nesterov": rule.figures["nesterov"]}
    first, spec = members[0].name, builder.spec(stack)
    velocity = builder.declare(Value(f"{stack}:velocity", spec, Rate.STEP, Role.VARIABLE, "zeros", parameter=first))
    operands, updates, phase = (stack, shared.factor, *shared.step), (velocity,), Phase.UPDATE
    line = builder.derived(first, "directions")
    directions = builder.add(line, "muon_direction", operands, updates=updates, attrs=attrs, phase=phase)
    labels = tuple(str(place) for place in range(1, len(members)))
    singles = builder.add(builder.derived(first, "direction"), "unstack", directions, labels=labels, phase=phase)
    for member, direction in zip(members, singles, strict=True):
        a, b = builder.spec(member.name).shape
        own_attrs = {"scale": math.sqrt(max(1.0, b / a)), "weight_decay": rule.of(member.name).weight_decay}
        inputs, updates = (direction, shared.lr(member.name, rule)), (member.name,)
        line = builder.derived(member.name, "muon", member.layer)
        builder.add(line, "descend", inputs, updates=updates, attrs=own_attrs, phase=phase, layer=member.layer)


def _states(builder: GraphBuilder, name: str, labels: Sequence[str]) -> Iterator[str]:
    for label in labels:
        spec = builder.spec(name)
        yield builder.declare(Value(f"{name}:{label}", spec, Rate.STEP, Role.VARIABLE, "zeros", parameter=name))


def _decay(builder: GraphBuilder, name: str, rule: Rule) -> float:
    """Weight decay is for matrices alone, if a group does not say otherwise."""
    return rule.decay(name, len(builder.spec(name).shape))
