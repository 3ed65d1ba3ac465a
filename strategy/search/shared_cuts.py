"""Shared cuts: what templates and closed forms say of many boxes at once.

A template of the tensor axis bounds every box with that axis, micro-batch and recomputing, whatever its data axis and
stages; one of a box's own, weighed by times alone, bounds all that compute the same and more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from strategy.bounds.least_exchange import (
    LeastAdding,
    least_adding,
    least_exchange_ns,
    least_message_ns,
    least_step_exchange_ns,
)
from strategy.bounds.least_work import LeastWork, least_steps_ns
from strategy.bounds.point import (
    DEFERRED,
    HELD,
    MICRO,
    OF_MICRO_BATCH,
    PARTS,
    PASSES,
    SAVED,
    SIZE,
    WAITING,
    FloatArray,
    time_at,
)
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.search.box import Box, of_tensor_axis, of_work
from strategy.search.template.answers import Answer, Question, on_axes
from strategy.search.template.outer_approximation import OuterApproximation, least_times
from strategy.space.candidates import Request

FEW = 4
"""Gradients of more micro-batches are added up and exchanged like those of so many."""


class SharedCuts:
    """What is known of boxes that have something in common."""

    def __init__(self, request: Request, work: LeastWork) -> None:
        self.request, self.work = request, work
        self.layers_ns: dict[object, int] = {}
        self.exchange_ns: dict[object, int] = {}
        self.gradients: dict[object, tuple[int, LeastAdding | None]] = {}
        self.cuts: dict[object, list[tuple[FloatArray, float]]] = {}
        self.points: dict[object, list[FloatArray]] = {}
        """What templates of a tensor axis are known to take."""

    def take(self, box: Box, question: Question, answer: Answer) -> float:
        """Remember a cut and its point; by how much that is nearer than all known ones, by the weights of the cut."""
        cut = question.weights, answer.least
        known = self.points.setdefault(of_tensor_axis(question.config), []) if question.tensor_axis else box.points
        nearer_ns = min((float(question.weights @ (point - answer.point)) for point in known), default=math.inf)
        known.append(answer.point)
        if question.tensor_axis:
            self.cuts.setdefault(of_tensor_axis(question.config), []).append(cut)
        elif question.config.recompute is Recompute.NONE and not question.weights[OF_MICRO_BATCH].any():
            self.cuts.setdefault(of_work(question.config), []).append(cut)
        elif box.within is not None:
            box.within.add_cut(*cut)
        self.share(box)
        return nearer_ns

    def bound_layers(self, boxes: Sequence[Box], box: Box, least_ns: int) -> None:
        """What the layers take of a micro-batch on the tensor and context axes alone, for all boxes with these."""
        key = on_axes(box.configs[0])
        self.layers_ns[key] = least_ns
        alike = [other for other in boxes if other.level == 0 and on_axes(other.configs[0]) == key]
        alike = [other for other in alike if math.isfinite(other.bound_ns)]
        known = [[self._known_ns(other)] * len(other.configs) for other in alike]
        configs = [config for other in alike for config in other.configs]
        bounds = iter(least_steps_ns(self.work, configs, [ns for each in known for ns in each]))
        for other in alike:
            other.bounds_ns = [max(before, next(bounds)) for before in other.bounds_ns]
            other.level = 1

    def _known_ns(self, box: Box) -> int:
        """What follows samples takes at least; computing again what is laid out alike adds its own work."""
        once, config = plain(box.configs[0]), box.configs[0]
        least_ns = self.layers_ns.get(on_axes(config), 0)
        more_s = self.work.seconds(config).following_s - self.work.seconds(once).following_s
        return least_ns + max(int(more_s * 1e9) - 1, 0) + self._exchange_ns(config)

    def _exchange_ns(self, config: PlanConfig) -> int:
        key = config.dp, config.cp, config.tp, config.zero_stage, config.recompute
        if key not in self.exchange_ns:
            self.exchange_ns[key] = least_exchange_ns(self.request, self.work, config)
        return self.exchange_ns[key]

    def within_of(self, box: Box) -> OuterApproximation:
        """What bounds the box before there are any cuts, and the first ones."""
        config, layers, work = box.configs[0], self.request.model.layers, self.work.seconds(box.configs[0])
        within = OuterApproximation.of(
            layers,
            self.request.memory_limit_bytes,
            work,
            self.work.bytes_of_layer(config),
            overlaps=self.request.cost.cluster.overlaps,
            between_ns=least_message_ns(self.request, self.work, config),
        )
        exchange_ns, adding = self._gradients(config)
        within.add_exchange(exchange_ns, micro=config.num_micro_batches == 1)
        if adding is not None:
            within.add_adding(adding)
            box.adding_ns = adding.ns
        rest_s = work.micro_batch_s - work.following_s
        within.add_cut(all_of_micro_batch(layers), self._known_ns(box) + rest_s * 1e9 + layers * box.adding_ns)
        return within

    def _gradients(self, config: PlanConfig) -> tuple[int, LeastAdding | None]:
        """What it takes to exchange and to add up a layer's gradients, at least."""
        often = min(config.num_micro_batches, FEW)
        key = config.dp, config.cp, config.tp, config.zero_stage, config.recompute, often
        if key not in self.gradients:
            like = replace(config, num_micro_batches=often)
            self.gradients[key] = (
                least_step_exchange_ns(self.request, self.work, like),
                least_adding(self.request, self.work, like),
            )
        return self.gradients[key]

    def _rest(self, box: Box) -> FloatArray:
        """(SIZE,): what a box takes at least beside what follows samples."""
        config = box.configs[0]
        rest = least_times(self.work.seconds(config), self.request.model.layers, free=True)
        least = self.work.bytes_of_layer(config)
        rest[HELD] = least.held - least.used
        return rest

    def share(self, box: Box) -> bool:
        """Take the cuts that others have found; says whether there were any."""
        if box.within is None:
            return False
        config, found = box.configs[0], False
        rest = self._rest(box)
        of_layer_ns = self._exchange_ns(config) / self.request.model.layers + box.adding_ns
        whole = of_work(replace(config, zero_stage=0))
        for key in dict.fromkeys((of_tensor_axis(config), of_work(config), whole)):
            known, seen = self.cuts.get(key, []), box.shared.get(key, 0)
            for weights, least in known[seen:]:
                more = 0.0
                if config.zero_stage == 3 and (weights[HELD].any() or (key == whole and not _gathers_first(weights))):
                    continue  # parameters are not held as they are used
                if key == of_tensor_axis(config):
                    exchanged = weights[MICRO].reshape(-1, PARTS).min(0).sum() * of_layer_ns
                    more = float(weights @ rest) + exchanged
                box.within.add_cut(weights, least + more)
                found = True
            box.shared[key] = len(known)
        return found

    def known_points(self, box: Box) -> list[FloatArray]:
        """What templates of a box's tensor axis are known to take, with what the box takes at least beside it."""
        config, rest = box.config, self._rest(box)
        rest[time_at("backward_ns", 0) :][:PARTS] += self._exchange_ns(config) / self.request.model.layers
        known = self.points.get(of_tensor_axis(config), [])
        return [restricted(point, on_tensor_axis(config)) + rest for point in known]


def plain(config: PlanConfig) -> PlanConfig:
    """A single micro-batch of which everything is kept: what others take more time than."""
    return replace(
        config, recompute=Recompute.NONE, num_micro_batches=1, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B
    )


def all_of_micro_batch(layers: int) -> FloatArray:
    """(SIZE,): the weights of all that a micro-batch takes."""
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, layers - 2, 1.0], 3)
    return weights


def on_tensor_axis(config: PlanConfig) -> tuple[slice, ...]:
    """The coordinates that a template of the tensor axis counts as those do that have a data axis too."""
    following = MICRO, SAVED, WAITING, DEFERRED
    return following if config.zero_stage == 3 else (*following, HELD)


def restricted(numbers: FloatArray, coordinates: Sequence[slice]) -> FloatArray:
    """(SIZE,): some coordinates alone."""
    found = np.zeros(SIZE)
    for part in coordinates:
        found[part] = numbers[part]
    return found


def _gathers_first(weights: FloatArray) -> bool:
    """Whether it costs no more to gather parameters once, ahead of all micro-batches, than in each of them."""
    forward, before = (weights[PARTS * PASSES.index(name) :][:PARTS] for name in ("forward_ns", "before_ns"))
    return bool((forward >= before).all())
