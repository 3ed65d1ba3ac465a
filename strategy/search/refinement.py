"""Refinement: bounds of all configurations, raised where it matters, and proposals of layouts on the way.

    level 0   every configuration, by the least work that it can do with              `configurations`
    level 1   what layers take on the tensor and context axes, communication included `template`
    level 2   the least step along paths through the schedule, in the memory that there is, by cuts that all boxes
              with the same tensor and context axes share                             `outer_approximation`
    level 3   cuts by layout problems of the box's own, whose answers are proposals

A *box* holds the configurations of one mesh, micro-batch and way to save memory. By turns the box that promises most,
by a rule of thumb, is brought to proposals, and the box with the least bound is refined by a level. A box whose bound
is not below the best objective by more than the gap is left as it is; the bound of the answer is the least of all
boxes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.graph.graph import Graph
from strategy.graph.signature import Signature
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.convert import Converter
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.search.box import Box, of_tensor_axis, of_work
from strategy.search.candidate.candidates import Request, placements_of
from strategy.search.candidate.least_exchange import least_exchange_ns, least_message_ns, least_step_exchange_ns
from strategy.search.candidate.least_work import LeastWork, least_steps_ns
from strategy.search.configurations import MeshGroup
from strategy.search.search_result import Watch
from strategy.search.template.outer_approximation import OuterApproximation, chunks_in_flight, least_times
from strategy.search.template.parts import parts_of
from strategy.search.template.point import HELD, MICRO, PARTS, SAVED, SIZE, SUMS, FloatArray
from strategy.search.template.stages import Pipelined, messages_ns, parts_at, pipelined
from strategy.search.templates import Templates, on_axes

TIE = 0.01
"""What filling the memory counts, as a part of the step."""
HARDER = 10.0
"""By this factor bytes count more where what was found does not fit."""
FIRST_TRIES, MOST_TRIES = 3, 2
"""So many prices of bytes are tried, to find the least at which something fits: at first, and once one is known."""
RISE, WORTH_SHARING = 1e-3, 3e-3
"""Part of the objective by which a further cut has to raise a bound, of the box's own and of all that share it."""
EXHAUSTED = 8
"""Level of a box that no further cut is looked for."""
ONE_SHARE, ONE_S = 0.05, 2.0
"""Share of the time for a single template, and seconds at least: it ends with a bound and a choice, not the best."""
MARGIN = 0.92
"""Memory as it is laid out over the sum of its parts, until a plan has been laid out: blocks share places."""


@dataclass(frozen=True, slots=True)
class LayoutProposal:
    """A configuration with its layouts, as the short model has them."""

    found: Pipelined
    graph: Graph
    signatures: Mapping[str, Signature]


@dataclass(slots=True)
class SearchState:
    """What has been found out: proposals, and whether all that may be better was looked at."""

    proposals: list[LayoutProposal] = field(default_factory=list)
    margins: dict[Schedule, float] = field(default_factory=dict)
    """Memory as it was laid out over the sum of its parts, where a plan has shown it."""
    refused: bool = False
    """Whether some plan did not fit though it was likely to."""
    complete: bool = True
    tried: set[PlanConfig] = field(default_factory=set)
    """Of which there are plans, or which do not fit as they are laid out."""
    pace: float = 1.0
    """Time that a plan has taken over what it was expected to."""

    def margin(self, schedule: Schedule) -> float:
        """What a sum of parts is multiplied by."""
        return self.margins.get(schedule, MARGIN)

    def fitting(self, request: Request) -> list[LayoutProposal]:
        """Those that are likely to fit, fastest first."""
        return sorted((one for one in self.proposals if self.fits(request, one)), key=lambda one: one.found.step_ns)

    def fits(self, request: Request, one: LayoutProposal) -> bool:
        """Whether it is likely to."""
        limit, there = request.memory_limit_bytes, host_memory_bytes(request.cost.cluster)
        peak = self.margin(one.found.config.schedule) * max(one.found.peak_bytes)
        return peak <= limit and max(one.found.host_bytes) <= there


class Refinement:
    """Refines boxes by turns, what promises most and what is bounded least, until nothing better can be left."""

    def __init__(
        self,
        request: Request,
        short: Model,
        work: LeastWork,
        groups: Sequence[MeshGroup],
        budget: Budget,
        watch: Watch | None,
    ) -> None:
        self.request, self.work, self.budget, self.watch = request, work, budget, watch
        self.templates = Templates(request, short)
        self.known = SearchState()
        self.layers_ns: dict[object, int] = {}
        self.exchange_ns: dict[object, int] = {}
        self.enough = HARDER
        self.one_s = max(ONE_S, ONE_SHARE * budget.left_s())
        self.cuts: dict[object, list[tuple[FloatArray, float]]] = {}
        self.boxes = [self._box(group) for group in groups]
        self.turns = 0

    def _box(self, group: MeshGroup) -> Box:
        """Of a group, without what cannot fit."""
        bounds, limit, layers = [], self.request.memory_limit_bytes, self.request.model.layers
        first = group.configs[0]
        least, bounds_ns = self.work.bytes_of_layer(first), list(group.bounds_ns)
        if first.zero_stage >= 2:
            known_ns = int(self.work.seconds(first).following_s * 1e9) + self._exchange_ns(first)
            bounds_ns = least_steps_ns(self.work, group.configs, known_ns)
        for config, bound_ns in zip(group.configs, bounds_ns, strict=True):
            here, run = layers // config.pp, layers // (config.pp * config.virtual_stages)
            fits = all(
                here * (least.held + sums * least.sums) + run * chunks_in_flight(config, 0, sums=sums) * least.saved
                <= limit
                for sums in (False, True)
            )
            bounds.append(float(bound_ns) if fits else math.inf)
        return Box(group.configs, bounds)

    @property
    def bound_ns(self) -> int:
        """No configuration takes less."""
        least = min(box.bound_ns for box in self.boxes)
        return int(least) if math.isfinite(least) else 0

    @property
    def best_ns(self) -> float:
        """The least objective of what is likely to fit."""
        fitting = self.known.fitting(self.request)
        return fitting[0].found.step_ns if fitting else math.inf

    def run(self) -> None:
        """Refine, until nothing is left or the time is over."""
        while True:
            most_ns = (1 - self.request.gap) * self.best_ns
            left = [box for box in self.boxes if box.bound_ns < most_ns and box.level < EXHAUSTED]
            if not left:
                self.known.complete = not any(box.bound_ns < most_ns for box in self.boxes)
                return
            if self.budget.is_over():
                self.known.complete = False
                return
            self.turns += 1
            box, to_the_end = self._next(left, most_ns)
            if self.watch is not None:
                best_ns = None if math.isinf(self.best_ns) else int(self.best_ns)
                self.watch(self.turns - 1, len(left), box.config, self.bound_ns, best_ns)
            self._refine_in_time(box, most_ns)
            while to_the_end and not box.is_proposed and box.bound_ns < most_ns and not self.budget.is_over():
                self._refine_in_time(box, most_ns)

    def _refine_in_time(self, box: Box, most_ns: float) -> None:
        """One level more, or none if that is not to be had."""
        try:
            self.refine(box, most_ns)
        except OutOfTimeError:
            if not self.budget.is_over():
                box.level, box.is_proposed = EXHAUSTED, True
        except InfeasibleError:
            box.close()

    def _for_one(self) -> Budget:
        """For a single template."""
        return Budget(min(self.budget.deadline_s, time.monotonic() + self.one_s), self.budget.max_entries)

    def go_on(self, budget: Budget) -> None:
        """Refine with more time; where plans held more than was thought, boxes are asked for lighter proposals."""
        self.budget = budget
        if self.known.refused:
            fits = {one.found.config for one in self.known.fitting(self.request)}
            for box in self.boxes:
                if box.is_proposed and fits.isdisjoint(box.configs):
                    box.is_proposed, box.level = False, min(box.level, 2)
            self.enough *= HARDER
        self.run()

    def _next(self, left: list[Box], most_ns: float) -> tuple[Box, bool]:
        """(a box, whether to go on until there are proposals from it): what promises most, or is bounded least.

        What a box promises is known once it is bounded in the memory that there is.
        """
        promising = [box for box in left if not box.is_proposed]
        if promising and self.turns % 2:
            while True:
                box = min(promising, key=self._promise)
                if box.level >= 2 or box.bound_ns >= most_ns or self.budget.is_over():
                    return box, True
                self._refine_in_time(box, most_ns)
        return min(left, key=lambda box: box.bound_ns), False

    def refine(self, box: Box, most_ns: float) -> None:
        """One level more, or what boxes share and this one has not."""
        if box.level == 0:
            self._bound_layers(box)
            return
        if box.within is None:
            box.within = self._within(box)
        if self._share(box) or not box.is_solved:
            box.level = max(box.level, 2)
            box.raise_bounds(most_ns)
        elif box.level == 2:
            self._cut_tensor_axis(box, most_ns)
        else:
            self._solve(box, most_ns)

    def _bound_layers(self, box: Box) -> None:
        """What the layers take of a micro-batch on the tensor and context axes alone, for all boxes with these."""
        key = on_axes(box.configs[0])
        self.layers_ns[key] = self._layers_ns(box.configs[0])
        for other in self.boxes:
            if other.level == 0 and on_axes(other.configs[0]) == key:
                bounds = least_steps_ns(self.work, other.configs, self._known_ns(other))
                other.bounds_ns = [max(known, new) for known, new in zip(other.bounds_ns, bounds, strict=True)]
                other.level = 1

    def _known_ns(self, box: Box) -> int:
        """What follows samples takes at least; computing again what is laid out alike adds its own work."""
        plain, config = _plain(box.configs[0]), box.configs[0]
        least_ns = self.layers_ns.get(on_axes(config), 0)
        more_s = self.work.seconds(config).following_s - self.work.seconds(plain).following_s
        return least_ns + max(int(more_s * 1e9) - 1, 0) + self._exchange_ns(config)

    def _exchange_ns(self, config: PlanConfig) -> int:
        key = config.dp, config.cp, config.tp, config.zero_stage, config.recompute
        if key not in self.exchange_ns:
            self.exchange_ns[key] = least_exchange_ns(self.request, self.work, config)
        return self.exchange_ns[key]

    def _layers_ns(self, config: PlanConfig) -> int:
        """The least cost of a template without data axis, which what samples follow leaves as it is."""
        plain = _plain(config)
        if config.tp * config.cp == 1:
            return int(self.work.seconds(plain).following_s * 1e9)
        template = self.templates.tensor_axis(plain, self.budget)
        least, *_ = template.solve(_micro(self.request.model.layers), self._for_one())
        return int(least)

    def _within(self, box: Box) -> OuterApproximation:
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
        within.add_exchange(
            least_step_exchange_ns(self.request, self.work, config), micro=config.num_micro_batches == 1
        )
        rest_s = work.micro_batch_s - work.following_s
        within.add_cut(_micro(layers), self._known_ns(box) + rest_s * 1e9)
        return within

    def _share(self, box: Box) -> bool:
        """Take the cuts that others have found; says whether there were any."""
        if box.within is None:
            return False
        config, found = box.configs[0], False
        rest = least_times(self.work.seconds(config), self.request.model.layers, free=True)
        of_layer_ns = self._exchange_ns(config) / self.request.model.layers
        for key in (of_tensor_axis(config), of_work(config)):
            known, seen = self.cuts.get(key, []), box.shared.get(key, 0)
            for weights, least in known[seen:]:
                more = 0.0
                if key == of_tensor_axis(config):
                    exchanged = weights[MICRO].reshape(-1, PARTS).min(0).sum() * of_layer_ns
                    more = float(weights @ rest) + exchanged
                box.within.add_cut(weights, least + more)
                found = True
            box.shared[key] = len(known)
        return found

    def _cut_tensor_axis(self, box: Box, most_ns: float) -> None:
        """A cut on the tensor axis alone by the prices of the least bounded configuration, for all that share it."""
        before_ns, config = box.bound_ns, box.config
        weights = np.zeros(SIZE)
        weights[MICRO], weights[SAVED] = box.prices[config].weights[MICRO], box.prices[config].weights[SAVED]
        if config.tp * config.cp > 1 or weights[SAVED].any():
            template = self.templates.tensor_axis(config, self.budget)
            least, *_ = template.solve(weights, self._for_one())
            self.cuts.setdefault(of_tensor_axis(config), []).append((weights, least))
            self._share(box)
            box.raise_bounds(most_ns)
        if box.bound_ns < before_ns + WORTH_SHARING * most_ns:
            box.level = 3

    def _solve(self, box: Box, most_ns: float) -> None:
        """A cut by the prices of the least bounded configuration, and proposals under its layouts."""
        before_ns, config, count = box.bound_ns, box.config, len(self.known.proposals)
        weights = box.prices[config].weights
        least = self._propose(box, weights)
        if config.recompute is Recompute.NONE and not weights[SAVED].any():
            self.cuts.setdefault(of_work(config), []).append((weights, least))
            self._share(box)
        elif box.within is not None:
            box.within.add_cut(weights, least)
        box.raise_bounds(most_ns)
        box.level += 1
        if box.bound_ns < before_ns + RISE * most_ns:
            box.level = EXHAUSTED
        if not box.is_proposed:
            box.is_proposed = True
            if not any(self.known.fits(self.request, one) for one in self.known.proposals[count:]):
                self._propose_lighter(box, config)

    def _propose_lighter(self, box: Box, config: PlanConfig) -> None:
        """Proposals that hold less, where what was found does not fit."""
        weights = box.prices[config].weights
        layers = parts_at(config, self.request.model.layers)[0].sum(0).astype(float)
        in_flight = float(min(config.pp, config.num_micro_batches))
        price = TIE * box.bound_ns / self.request.memory_limit_bytes
        low, high = 0.0, math.inf  # of what a byte counts: too little, and enough
        factor = self.enough
        for _ in range(FIRST_TRIES if self.enough == HARDER else MOST_TRIES):
            fitting = self.known.fitting(self.request)
            if self.budget.is_over() or (fitting and box.bound_ns >= (1 - self.request.gap) * fitting[0].found.step_ns):
                return
            heavier = weights.copy()
            heavier[HELD] = heavier[SUMS] = factor * price * layers
            heavier[SAVED] = factor * price * in_flight * layers
            count = len(self.known.proposals)
            self._propose(box, heavier)
            fits = any(self.known.fits(self.request, one) for one in self.known.proposals[count:])
            low, high = (low, factor) if fits else (factor, high)
            self.enough = factor if fits else self.enough
            factor = HARDER * factor if math.isinf(high) else math.sqrt(max(low, 0.1) * high)

    def _propose(self, box: Box, weights: FloatArray) -> float:
        """Add the configurations of a box under the layouts that cost least; returns what these cost at least."""
        request, config = self.request, box.config
        template = self.templates.full(config, self.budget)
        least, signatures, point = template.solve(weights, self._for_one())
        best_ns, within = self.best_ns, box.within
        worth = [one for one in box.configs if within is None or within.step_ns(one, point) < best_ns]
        if not worth:
            return least
        layout, arrangement = template.arranged(signatures)
        parts = parts_of(template.space.graph, layout, arrangement, request.cost)
        converter = Converter(request.cost, placements_of(config)[:2])
        between = messages_ns(template.space, signatures, converter)
        for one in worth:
            found = pipelined(parts, one, request.model.layers, between, overlaps=request.cost.cluster.overlaps)
            self.known.proposals.append(LayoutProposal(found, template.space.graph, signatures))
        return least

    def _promise(self, box: Box) -> float:
        """A guess of the step's nanoseconds, to begin with what is likely to be good; remembered by its bound."""
        bound_ns = box.bound_ns
        if box.promise[0] != bound_ns:
            box.promise = bound_ns, self._guess_ns(box) if math.isfinite(bound_ns) else math.inf
        return box.promise[1]

    def _guess_ns(self, box: Box) -> float:
        request, config, cluster = self.request, box.config, self.request.cost.cluster
        inside = cluster.devices_per_node
        parameters = request.model.parameters / (config.tp * config.pp)
        static = parameters * (7 + 12 / config.dp if config.zero_stage < 3 else 18 / config.dp)
        in_flight = min(config.pp, config.num_micro_batches)
        saved = self.work.bytes_of_layer(config).saved * request.model.layers / config.pp
        held = static + 2 * saved * in_flight
        exposed = 0.04 * min(config.tp, inside).bit_length() + max(0, config.tp - inside)
        gathers = config.num_micro_batches if config.zero_stage == 3 else 1
        gathered_ns = 6 * parameters * gathers / cluster.inter.bytes_per_s * 1e9 if config.dp > 1 else 0.0
        least = self.work.seconds(config)
        uneven_ns = least.outside_s * (1 - 1 / config.pp) * config.num_micro_batches * 1e9
        crowded = max(1.0, held / request.memory_limit_bytes) ** 2
        return crowded * ((box.bound_ns + uneven_ns) * (1 + exposed) + gathered_ns)


def _plain(config: PlanConfig) -> PlanConfig:
    """A single micro-batch of which everything is kept: what others take more time than."""
    return replace(
        config, recompute=Recompute.NONE, num_micro_batches=1, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B
    )


def _micro(layers: int) -> FloatArray:
    """(SIZE,): all that a micro-batch takes."""
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, layers - 2, 1.0], 3)
    return weights
