"""Refinement: bounds of all configurations, raised where it matters, and proposals of layouts on the way.

    level 0   every configuration, by the least work that it can do with              `configurations`
    level 1   what layers take on the tensor and context axes, communication included `template`
    level 2   the least step along paths through the schedule, in the memory that there is
    level 3   cuts by layout problems on a short model, whose answers are proposals   `outer_approximation`

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

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.graph.signature import Signature
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.convert import Converter
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.search.candidate.candidates import Request, placements_of
from strategy.search.candidate.least_exchange import least_exchange_ns
from strategy.search.candidate.least_work import LeastWork, least_steps_ns
from strategy.search.configurations import MeshGroup
from strategy.search.layouts.short_model import LAYERS
from strategy.search.search_result import Watch
from strategy.search.template.layer_template import PASSES, LayerTemplate, Weights
from strategy.search.template.outer_approximation import (
    Bound,
    OuterApproximation,
    chunks_in_flight,
    scale_of,
    template_weights,
    three,
)
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import Pipelined, messages_ns, parts_at, pipelined

TIE = 0.01
"""What filling the memory counts, as a part of the step."""
HARDER = 10.0
"""By this factor bytes count more where what was found does not fit."""
FIRST_TRIES, MOST_TRIES = 3, 2
"""So many prices of bytes are tried, to find the least at which something fits: at first, and once one is known."""
RISE = 1e-3
"""Part of the objective by which a further cut has to raise a bound."""
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
    template: LayerTemplate
    signatures: Mapping[str, Signature]


@dataclass(slots=True, eq=False)
class _Box:
    """A mesh group with what bounds its configurations; `level` is that of the module's table, in steps."""

    configs: tuple[PlanConfig, ...]
    bounds_ns: list[float]
    level: int = 0
    within: OuterApproximation | None = None
    prices: dict[PlanConfig, Bound] = field(default_factory=dict)
    cuts: int = 0
    """Cuts that it has of those that all boxes with its work share."""
    is_proposed: bool = False

    @property
    def bound_ns(self) -> float:
        """Of all configurations; infinite where none fits."""
        return min(self.bounds_ns)

    @property
    def config(self) -> PlanConfig:
        """The one with the least bound."""
        return self.configs[self.bounds_ns.index(self.bound_ns)]


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
        self.request, self.short, self.work, self.budget, self.watch = request, short, work, budget, watch
        self.known = SearchState()
        self.layers_ns: dict[object, int] = {}
        self.exchange_ns: dict[object, int] = {}
        self.enough = HARDER
        self.one_s = max(ONE_S, ONE_SHARE * budget.left_s())
        self.cuts: dict[object, list[tuple[Weights, int]]] = {}
        self.boxes = [self._box(group) for group in groups]
        self.promising = sorted(self.boxes, key=self._promise, reverse=True)
        self.turns = 0

    def _box(self, group: MeshGroup) -> _Box:
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
        return _Box(group.configs, bounds)

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
            try:
                self.refine(box, most_ns)
                while to_the_end and not box.is_proposed and box.bound_ns < most_ns:
                    self.refine(box, most_ns)
            except OutOfTimeError:
                if not self.budget.is_over():
                    box.level, box.is_proposed = EXHAUSTED, True
            except InfeasibleError:
                box.bounds_ns = [math.inf] * len(box.configs)

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
            self.promising = sorted(self.boxes, key=self._promise, reverse=True)
        self.run()

    def _next(self, left: list[_Box], most_ns: float) -> tuple[_Box, bool]:
        """(a box, whether to go on until there are proposals from it): what promises most, or is bounded least."""
        while self.promising and self.turns % 2:
            box = self.promising.pop()
            if box.bound_ns < most_ns and not box.is_proposed:
                return box, True
        return min(left, key=lambda box: box.bound_ns), False

    def refine(self, box: _Box, most_ns: float) -> None:
        """One level more."""
        if box.level == 0:
            self._bound_layers(box)
        elif box.level == 1:
            self._bound_within(box, most_ns)
            box.level = 2
        else:
            self._solve(box, most_ns)

    def _bound_layers(self, box: _Box) -> None:
        """What the layers take of a micro-batch on the tensor and context axes alone, for all boxes with these."""
        key = _on_axes(box.configs[0])
        self.layers_ns[key] = self._layers_ns(box.configs[0])
        for other in self.boxes:
            if other.level == 0 and _on_axes(other.configs[0]) == key:
                bounds = least_steps_ns(self.work, other.configs, self._known_ns(other))
                other.bounds_ns = [max(known, new) for known, new in zip(other.bounds_ns, bounds, strict=True)]
                other.level = 1

    def _known_ns(self, box: _Box) -> int:
        """What follows samples takes at least; computing again what is laid out alike adds its own work."""
        plain, config = _plain(box.configs[0]), box.configs[0]
        least_ns = self.layers_ns.get(_on_axes(config), 0)
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
        alone = replace(plain, dp=1, zero_stage=0)
        training = replace(self.request.training, global_batch=config.micro_batch)
        counts = (1, self.request.model.layers - LAYERS + 1, 1)
        micro = ("forward_ns", "backward_ns", "weight_ns")
        weights = Weights({name: counts if name in micro else (0, 0, 0) for name in PASSES}, following=True)
        request = replace(self.request, training=training)
        template = LayerTemplate.of(request, self.short, alone, weights, self.budget)
        least, _ = template.solve(self._for_one())
        return least

    def _bound_within(self, box: _Box, most_ns: float) -> None:
        """Along paths, within the cuts and the memory."""
        if box.within is None:
            box.within = OuterApproximation.of(
                self.request.model.layers,
                self.request.memory_limit_bytes,
                self.work.seconds(box.configs[0]),
                self.work.bytes_of_layer(box.configs[0]),
                self._known_ns(box),
                overlaps=self.request.cost.cluster.overlaps,
            )
        known = self.cuts.get(_of_work(box.configs[0]), ())
        for weights, least in known[box.cuts :]:
            box.within.add_cut(weights, least)
        box.cuts = len(known)
        for i, config in enumerate(box.configs):
            if box.bounds_ns[i] < most_ns:
                bound = box.prices[config] = box.within.bound(config)
                box.bounds_ns[i] = math.inf if bound.step_ns is None else max(box.bounds_ns[i], bound.step_ns)

    def _solve(self, box: _Box, most_ns: float) -> None:
        """A cut by the prices of the least bounded configuration, and proposals under its layouts."""
        before_ns, config, count = box.bound_ns, box.config, len(self.known.proposals)
        weights = template_weights(box.prices[config])
        least = self._propose(box, weights)
        if config.recompute is Recompute.NONE and not any(weights.saved):
            self.cuts.setdefault(_of_work(config), []).append((weights, least))
        elif box.within is not None:
            box.within.add_cut(weights, least)
        self._bound_within(box, most_ns)
        box.level += 1
        if box.bound_ns < before_ns + RISE * most_ns:
            box.level = EXHAUSTED
        if not box.is_proposed:
            box.is_proposed = True
            if not any(self.known.fits(self.request, one) for one in self.known.proposals[count:]):
                self._propose_lighter(box, config)

    def _propose_lighter(self, box: _Box, config: PlanConfig) -> None:
        """Proposals that hold less, where what was found does not fit."""
        weights = template_weights(box.prices[config])
        layers = parts_at(config, self.request.model.layers)[0].sum(0).astype(float)
        in_flight = float(min(config.pp, config.num_micro_batches))
        price = TIE * box.bound_ns * scale_of(box.prices[config]) / self.request.memory_limit_bytes
        low, high = 0.0, math.inf  # of what a byte counts: too little, and enough
        factor = self.enough
        for _ in range(FIRST_TRIES if self.enough == HARDER else MOST_TRIES):
            fitting = self.known.fitting(self.request)
            if self.budget.is_over() or (fitting and box.bound_ns >= (1 - self.request.gap) * fitting[0].found.step_ns):
                return
            held, saved = (three((factor * price * often * layers).tolist()) for often in (1, in_flight))
            count = len(self.known.proposals)
            self._propose(box, replace(weights, held=held, sums=held, saved=saved, copies=True))
            fits = any(self.known.fits(self.request, one) for one in self.known.proposals[count:])
            low, high = (low, factor) if fits else (factor, high)
            self.enough = factor if fits else self.enough
            factor = HARDER * factor if math.isinf(high) else math.sqrt(max(low, 0.1) * high)

    def _propose(self, box: _Box, weights: Weights) -> int:
        """Add the configurations of a box under the layouts that cost least; returns what these cost at least."""
        request, config = self.request, box.config
        template = LayerTemplate.of(request, self.short, config, weights, self.budget)
        least, signatures = template.solve(self._for_one())
        layout, arrangement = template.arranged(signatures)
        parts = parts_of(template.space.graph, layout, arrangement, request.cost)
        converter = Converter(request.cost, placements_of(config)[:2])
        between = messages_ns(template.space, signatures, converter)
        for one in box.configs:
            found = pipelined(parts, one, request.model.layers, between, overlaps=request.cost.cluster.overlaps)
            self.known.proposals.append(LayoutProposal(found, template, signatures))
        return least

    def _promise(self, box: _Box) -> float:
        """A guess of the step's nanoseconds, to begin with what is likely to be good."""
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


def _on_axes(config: PlanConfig) -> object:
    """What a template without data axis depends on."""
    return config.tp, config.cp, config.context, config.micro_batch


def _of_work(config: PlanConfig) -> object:
    """What a template of everything that takes time depends on, and what computes some of it again takes no less than.

    What computes again is laid out like what it computes: without it, all else could be as it is.
    """
    return (
        config.dp,
        config.tp,
        config.cp,
        config.context,
        config.micro_batch,
        config.num_micro_batches,
        config.zero_stage,
    )


def _plain(config: PlanConfig) -> PlanConfig:
    """A single micro-batch of which everything is kept: what others take more time than."""
    return replace(
        config, recompute=Recompute.NONE, num_micro_batches=1, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B
    )
