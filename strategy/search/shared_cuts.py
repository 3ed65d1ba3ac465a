"""Shared cuts: what templates say of many boxes at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.crossings import crossings_of
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.least_work import LeastWork
from strategy.bounds.point import PARTS, FloatArray, time_at
from strategy.bounds.template_cut import TemplateCut, boxes_alike, of_tensor_axis, on_tensor_axis, restricted
from strategy.search.box import Box
from strategy.search.template.outer_approximation import KnownPaths, OuterApproximation
from strategy.space.request import Request

FEW_WAITING = 8
"""Linear programs of so many boxes take about as long as a question of one unit of effort."""


class SharedCuts:
    """What is known of boxes that have something in common."""

    def __init__(self, request: Request, work: LeastWork) -> None:
        self.request, self.forms = request, ClosedForms(request, work)
        self.of_layers: dict[object, TemplateCut] = {}
        """By axes, what told what layers take on them."""
        self.cuts: dict[object, list[TemplateCut]] = {}
        self.points: dict[object, list[FloatArray]] = {}
        """What templates of a tensor axis are known to take."""
        self.on_axes: dict[object, list[Box]] = {}
        """By what their layers depend on, boxes; and by what goes on beside these."""
        self.exchanging: dict[object, list[Box]] = {}
        self.paths = KnownPaths()
        self.weighed: set[object] = set()
        """Templates of a tensor axis that were asked for the least that a layer saves."""

    def know(self, boxes: Sequence[Box]) -> None:
        """All boxes that there are."""
        for box in boxes:
            self.on_axes.setdefault(box.axes, []).append(box)
            self.exchanging.setdefault(box.exchanging, []).append(box)

    def take(self, box: Box, cut: TemplateCut, point: FloatArray) -> float:
        """Remember a cut and its point; by how much that is nearer than all known ones, by the weights of the cut."""
        weights, key = cut.weighing.weights, cut.template.key
        known = (self.points if cut.template.tensor_axis else box.points).setdefault(key, [])
        nearer_ns = min((float(weights @ (one - point)) for one in known), default=math.inf)
        known.append(point)
        self.cuts.setdefault(cut.alike, []).append(cut)
        self.share(box)
        return nearer_ns

    def bound_layers(self, box: Box, told: TemplateCut | None) -> None:
        """What layers take of a micro-batch on the tensor and context axes alone, for all boxes with these.

        Where they are on one rank, that is their work: nothing is told.
        """
        key = box.axes
        if told is not None:
            self.of_layers[key], self.forms.layers_ns[key] = told, int(told.inequality.least)
        alike = [other for other in self.on_axes[key] if other.level == 0]
        for other in alike:
            other.is_outdated = True
        if box.configs[0].ep == 1:
            self._count_exchanges(alike)
        else:  # what experts exchange takes long to find, and counts where a box is looked at
            self._bound(alike, exchanges=False)
        for other in alike:
            other.level = int(math.isfinite(other.bound_ns))

    def bound_in_memory(self, box: Box, effort: float, most_ns: float) -> bool:
        """Bound a box by its linear program before it is told what its layers take, if that is the sooner way.

        So it is once for each box, where few wait for an answer that is so much effort (`Question.effort`).
        """
        if box.within is not None or math.isinf(most_ns):
            return False
        waiting = sum(other.level == 0 and other.bound_ns < most_ns for other in self.on_axes[box.axes])
        if waiting > FEW_WAITING * effort:
            return False
        self.begin(box)
        box.raise_bounds(most_ns)
        return True

    def is_soon_counted(self, box: Box) -> bool:
        """Whether what is exchanged is found sooner than what layers take: with experts, for all data axes at once."""
        return box.configs[0].ep == 1 or self.forms.are_axes_alike

    def count_exchanges(self, box: Box) -> None:
        """Bound what exchanges the same as a box by what is known of its layers, with what goes on beside these."""
        alike = self.exchanging[box.exchanging]
        self._count_exchanges([other for other in alike if other.level < 2 and not other.counts_exchanges])

    def _count_exchanges(self, boxes: Sequence[Box]) -> None:
        self._bound(boxes, exchanges=True)
        for box in boxes:
            box.counts_exchanges, box.promise = True, (None, 0.0)

    def _bound(self, boxes: Sequence[Box], *, exchanges: bool) -> None:
        fitting = [box for box in boxes if math.isfinite(box.bound_ns)]
        configs = [config for box in fitting for config in box.configs]
        bounds = iter(self.forms.first_bounds_ns(configs, exchanges=exchanges))
        for box in fitting:
            box.bounds_ns = [max(before, next(bounds)) for before in box.bounds_ns]

    def begin(self, box: Box) -> None:
        """Let a box be bounded by a linear program; by a new one where more is known of its layers."""
        if box.within is None or box.is_outdated:
            box.within, box.is_outdated = self.within_of(box), False
            box.solved.clear()
            box.seen.clear()

    def within_of(self, box: Box) -> OuterApproximation:
        """What bounds the box before there are any cuts of templates."""
        forms = self.forms
        return OuterApproximation.of(
            self.request.model.layers,
            self.request.memory_limit_bytes,
            [forms.of_way(way) for way in ways_of(self.request, box.configs[0])],
            self.request.overlap_of(box.config),
            crossings_of(self.request.cost.cluster, box.config),
            self.paths,
        )

    def share(self, box: Box) -> bool:
        """Take the cuts that have been found since; says whether any bounds the box."""
        if box.within is None:
            return False
        found = False
        for i, way in enumerate(ways_of(self.request, box.configs[0])):
            for key in boxes_alike(way):
                known = self.cuts.get(key, [])
                for cut in known[box.seen.get((i, key), 0) :]:
                    if cut.bounds(way):
                        box.within.add_cut(cut.said_of(way, self.forms), cut, i)
                        found = True
                box.seen[i, key] = len(known)
        return found

    def known_points(self, box: Box) -> list[list[FloatArray]]:
        """What templates of a box's tensor axis are known to take, with what the box takes at least beside it.

        Of each way to treat the layers between.
        """
        found = []
        for way in ways_of(self.request, box.config):
            beside = self.forms.beside(way)
            beside[time_at("backward_overlapped_ns", 0) :][:PARTS] += (
                self.forms.exchange_ns(self.forms.timed(way)) / self.request.model.layers
            )
            known = self.points.get(of_tensor_axis(way), [])
            found.append([restricted(point, on_tensor_axis(way)) + beside for point in known])
        return found
