"""Template cut: what the layouts of a template cost at least under weights, and which configurations that bounds.

A template of the tensor axis bounds every configuration with that axis, micro-batch and recomputing, whatever its data
axis and stages: nothing that the tensor axis exchanges takes less on its way along the data axis, by prices of links
wherever axes lie (`CostModel.wherever_axes_lie`). One of a mesh, weighed by times alone, bounds all that
compute the same and more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from strategy.bounds.closed_forms import ClosedForms, on_axes
from strategy.bounds.inequality import Inequality
from strategy.bounds.point import (
    ADDED,
    AHEAD,
    AT_HEAD,
    AT_WORK,
    BACKWARD_COVERED,
    BYTES,
    DEFERRED,
    HELD,
    MICRO,
    MICRO_COPIED,
    MICRO_WAITED,
    MOVED,
    OF_MICRO_BATCH,
    PARTS,
    SAVED,
    SIZE,
    TIED,
    WAITING,
    FloatArray,
    time_at,
)
from strategy.ilp.certificate.proof import Proof
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.space.problem_builder import Weighing

BACKWARD_WAITED = slice(time_at("backward_waited_ns", 0), time_at("backward_waited_ns", PARTS))
"""What a backward pass waits for."""
HELD_OR_AHEAD = slice(HELD.start, AHEAD.stop)
"""What is held of parameters."""


@dataclass(frozen=True, slots=True)
class TemplateName:
    """Which template: that of a configuration's mesh, or of what every data axis has alike, without that axis."""

    config: PlanConfig
    tensor_axis: bool

    @property
    def key(self) -> object:
        """What the template depends on."""
        config = self.config
        if self.tensor_axis:
            return of_tensor_axis(config)
        several = config.num_micro_batches, config.zero_stage, config.offload, config.pp > 1, config.strides
        return *of_tensor_axis(config), config.dp, config.zero_group, *several


@dataclass(frozen=True, slots=True, eq=False)
class TemplateCut:
    """No choice of a template's layouts costs less.

    Attributes:
        template: whose.
        weighing: what its coordinates weigh.
        least: of the problem so weighed, in its own whole units; None where no choice is legal.
        proof: of that, None where not even signatures are left.
    """

    template: TemplateName
    weighing: Weighing
    least: int | None
    proof: Proof | None

    @property
    def inequality(self) -> Inequality:
        """Of the template's points; rounded down."""
        least = self.weighing.total(self.least or 0)
        return Inequality(self.weighing.weights, math.nextafter(least, 0.0))

    @property
    def alike(self) -> object:
        """One of `boxes_alike` of every configuration that it bounds."""
        config, is_shared = self.template.config, self._is_of_work
        return of_work(config) if is_shared and not self.template.tensor_axis else self.template.key

    @property
    def _is_of_work(self) -> bool:
        """Whether it holds for all that compute as much and more."""
        config = self.template.config
        saves_nothing = config.recompute is Recompute.NONE and config.offload is Offload.NONE
        weights = self.weighing.weights
        # What only forward passes read, backward passes may read, too, that compute again.
        no_dearer = bool((weights[AHEAD] <= weights[HELD]).all())
        no_dearer &= not any(weights[part].any() for part in (OF_MICRO_BATCH, MOVED, AT_HEAD, AT_WORK))
        return saves_nothing and self.least is not None and no_dearer

    def bounds(self, config: PlanConfig) -> bool:
        """Whether what it says holds for a configuration."""
        ours, weights = self.template.config, self.weighing.weights
        of_bytes = bool(weights[BYTES].any())
        if self.template.tensor_axis:
            if config.offload.of_activations is not ours.offload.of_activations and of_bytes:
                return False  # less is held where the host holds some of it
            if (weights[BACKWARD_COVERED] > weights[BACKWARD_WAITED]).any():
                return False  # with more micro-batches more may be covered
            alike = of_tensor_axis(config.saving_nothing) if self._is_of_work else of_tensor_axis(config)
            return of_tensor_axis(ours) == alike and not (config.zero_stage == 3 and weights[HELD_OR_AHEAD].any())
        if self.template.key == TemplateName(config, tensor_axis=False).key:
            return True
        if (
            not self._is_of_work
            or (config.offload is not Offload.NONE and of_bytes)
            or (config.zero_stage == 3 and weights[HELD_OR_AHEAD].any())
        ):
            return False  # under stage 3 parameters are not held as they are used
        if of_work(ours) == of_work(config):
            return True
        if config.zero_group:
            return False
        # What gathers parameters in every micro-batch takes no less than what gathers them once.
        # That is so of what a stage gathers, not of how ends hand each other what both use.
        return of_work(ours) == of_work(replace(config, zero_stage=0)) and (
            config.zero_stage != 3 or (_gathers_first(weights) and not weights[TIED].any())
        )

    def said_of(self, config: PlanConfig, forms: ClosedForms) -> Inequality:
        """What it says of a configuration that it bounds; what is beside what the template counts is added."""
        found = self.inequality
        if not self.template.tensor_axis:
            return found
        more, weights = float(found.weights @ forms.beside(config)), found.weights.copy()
        _, adding = forms.gradients(config.keeping_everything if config.kept_layers else config)
        if adding is not None:
            least = found.weights[MICRO].reshape(-1, PARTS).min(0)
            more += float(least.sum()) * adding.ns
            for name in ("backward_overlapped_ns", "weight_overlapped_ns"):
                weights[time_at(name, 0) :][:PARTS] += adding.overlapped_per_ns * least
        return Inequality(weights, math.nextafter(found.least + more, 0.0))


def of_tensor_axis(config: PlanConfig) -> tuple[object, ...]:
    """What a template of the tensor axis depends on."""
    return *on_axes(config), config.recompute, config.kept_layers, config.offload.of_activations


def of_work(config: PlanConfig) -> tuple[object, ...]:
    """What a template of everything that takes time depends on, and what computes some of it again takes no less than.

    What computes again is laid out like what it computes: without it, all else could be as it is.
    """
    several = config.num_micro_batches, config.zero_stage, config.strides[1:]
    return config.dp, config.zero_group, *on_axes(config), *several


def boxes_alike(config: PlanConfig) -> tuple[object, ...]:
    """What a configuration has in common with those whose templates may bound it, each once."""
    own = TemplateName(config, tensor_axis=False).key
    plain = () if config.zero_group else (of_work(replace(config, zero_stage=0)),)
    axes = of_tensor_axis(config), of_tensor_axis(config.saving_nothing)
    return tuple(dict.fromkeys((*axes, own, of_work(config), *plain)))


def on_tensor_axis(config: PlanConfig) -> tuple[slice, ...]:
    """The coordinates that a template of the tensor axis counts as those do that have a data axis too."""
    following = MICRO, MICRO_WAITED, BACKWARD_COVERED, MICRO_COPIED, SAVED, WAITING, DEFERRED, ADDED, AT_HEAD, AT_WORK
    return following if config.zero_stage == 3 else (*following, HELD, AHEAD)


def restricted(numbers: FloatArray, coordinates: Sequence[slice]) -> FloatArray:
    """(SIZE,): some coordinates alone."""
    found = np.zeros(SIZE)
    for part in coordinates:
        found[part] = numbers[part]
    return found


def _gathers_first(weights: FloatArray) -> bool:
    """Whether it costs no more to gather parameters once, ahead of all micro-batches, than in each of them."""
    forward, before, gathers, first, waited = (
        weights[time_at(name, 0) :][:PARTS]
        for name in ("forward_ns", "before_ns", "forward_overlapped_ns", "before_overlapped_ns", "forward_waited_ns")
    )
    return bool((forward >= before).all() and (waited >= before).all() and (gathers >= first).all())
