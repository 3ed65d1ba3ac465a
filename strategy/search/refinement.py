"""Refinement: bounds of all configurations, raised where it matters, and proposals of layouts on the way.

    level 0   every configuration, by the least work that it can do with              `configurations`
    level 1   what layers take on the tensor and context axes, communication included `template`
    level 2   the least step along paths through the schedule, in the memory that there is, by cuts that all boxes
              with the same tensor and context axes share                             `outer_approximation`
    level 3   cuts by layout problems of the box's own, whose answers are proposals

A *box* holds the configurations of one mesh, micro-batch and way to save memory. In every turn two boxes are refined,
side by side: that which promises most, by a rule of thumb, until there are proposals from it, and that with the least
bound. A box whose bound is not below the best objective by more than the gap is left as it is; the bound of the answer
is the least of all boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np

from strategy.base.beside import spare_processors
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.search.box import EXHAUSTED, Box, of_tensor_axis, of_work
from strategy.search.candidate.candidates import Request
from strategy.search.candidate.least_exchange import (
    LeastAdding,
    least_adding,
    least_exchange_ns,
    least_message_ns,
    least_step_exchange_ns,
)
from strategy.search.candidate.least_work import LeastWork, least_steps_ns
from strategy.search.configurations import MeshGroup
from strategy.search.lightest import least_bytes
from strategy.search.search_result import Watch
from strategy.search.search_state import LayoutProposal, SearchState
from strategy.search.template.answers import Answer, Proposed, Question, Templates, on_axes
from strategy.search.template.outer_approximation import Bound, OuterApproximation, least_times
from strategy.search.template.point import (
    DEFERRED,
    HELD,
    MESSAGES,
    MICRO,
    OF_MICRO_BATCH,
    PARTS,
    PASSES,
    SAVED,
    SIZE,
    SUMS,
    TIMES,
    WAITING,
    FloatArray,
    time_at,
)
from strategy.search.template.stages import parts_at, pipelined
from strategy.search.workers import Outcome, Workers

TIE = 0.01
"""What filling the memory counts at least, as a part of the step, where proposals did not fit."""
HARDER = 4.0
"""By this factor bytes count more after every such proposal."""
MOST_STALLED = 2
"""So many cuts in turn may gain nothing before no further one is looked for."""
MOST_TRIES, FIRST_TRIES = 3, 5
"""So often proposals of a box are made to hold less: once something fits, and before."""
LITTLE = 2e-3
"""By this part what is not on a path counts all the same."""
SETTLED = 0.03
"""By this part what fits may take longer than what does not, for a box to be proposed."""
RISE, WORTH_SHARING = 1e-3, 3e-3
"""Part of the objective by which a further cut has to raise a bound, of the box's own and of all that share it."""
BESIDE = 1
"""Processes beside this one, if there are processors: as many boxes are refined at a time as there are processes."""
MEANWHILE = 12
"""So many boxes are bounded beside other work."""
FEW = 4
"""Gradients of more micro-batches are added up and exchanged like those of so many."""
UNLIKELY = 2.0
"""A box of which nothing is likely to fit is thought to take this much more than its bound."""
ONE_SHARE, ONE_S = 0.05, 2.0
"""Share of the time for a single template, and seconds at least: it ends with a bound and a choice, not the best."""


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
        self.workers = Workers(Templates(request, short), min(BESIDE, spare_processors()))
        self.known = SearchState()
        self.layers_ns: dict[object, int] = {}
        self.exchange_ns: dict[object, int] = {}
        self.gradients: dict[object, tuple[int, LeastAdding | None]] = {}
        self.crowding: dict[Schedule, float] = {}
        """Bytes that are held beside those that bounds count, by a sample on one rank, as proposals have shown."""
        self.too_many: dict[object, int] = {}
        """By what decides on memory, samples of a micro-batch with which nothing was found to fit."""
        self.one_s = max(ONE_S, ONE_SHARE * budget.left_s())
        self.cuts: dict[object, list[tuple[FloatArray, float]]] = {}
        self.points: dict[object, list[FloatArray]] = {}
        """What templates of a tensor axis are known to take."""
        self.boxes = [self._box(group) for group in groups]
        self.promising: Box | None = None
        self.turns = 0

    def __enter__(self) -> Refinement:
        self.workers.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.workers.__exit__(kind, error, at)

    def _box(self, group: MeshGroup) -> Box:
        """Of a group, without what cannot fit."""
        bounds, limit, layers = [], self.request.memory_limit_bytes, self.request.model.layers
        for config, bound_ns in zip(group.configs, group.bounds_ns, strict=True):
            fits = least_bytes(self.work, layers, config) <= limit
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
            left = [box for box in self.boxes if box.bound_ns < most_ns and not box.is_done]
            if not left:
                self.known.complete = not any(box.bound_ns < most_ns for box in self.boxes)
                return
            if self.budget.is_over():
                self.known.complete = False
                return
            self.turns += 1
            questions = self._questions(left, most_ns)
            self._take_all(questions, self.workers.answers([question for _, question in questions]), most_ns)

    def _take_all(self, questions: list[tuple[Box, Question]], outcomes: list[Outcome], most_ns: float) -> None:
        for (box, question), outcome in zip(questions, outcomes, strict=True):
            if isinstance(outcome, Answer):
                self._take(box, question, outcome, most_ns)
            elif isinstance(outcome, InfeasibleError):
                box.close()
            elif not self.budget.is_over():
                box.level, box.is_proposed = EXHAUSTED, True

    def meanwhile(self, work: Callable[[], None], budget: Budget) -> None:
        """Do something else, while other processes bound the layers of boxes of which only the least work is known."""
        self.budget, most_ns = budget, (1 - self.request.gap) * self.best_ns
        questions: dict[object, tuple[Box, Question]] = {}
        for box in sorted(self.boxes, key=lambda box: box.bound_ns) if self.workers.others else ():
            axes, ranks = _first_template(box), box.configs[0].tp * box.configs[0].cp
            if box.level == 0 and ranks > 1 and box.bound_ns < most_ns and len(questions) < MEANWHILE:
                questions.setdefault(axes, (box, self._first_question(box)))
        asked = list(questions.values())
        outcomes = self.workers.meanwhile([question for _, question in asked], work)
        self._take_all([pair for pair in asked if pair[0].level == 0], outcomes, most_ns)

    def refine(self, box: Box, most_ns: float) -> None:
        """One level more."""
        question = self._question(box, most_ns, promises=True)
        if question is not None:
            (outcome,) = self.workers.answers([question])
            if not isinstance(outcome, Answer):
                raise outcome
            self._take(box, question, outcome, most_ns)

    def go_on(self, budget: Budget) -> None:
        """Refine with more time; where plans held more than was thought, boxes are asked for lighter proposals."""
        self.budget = budget
        if self.known.refused:
            fits = {one.found.config for one in self.known.fitting(self.request)}
            for box in self.boxes:
                if box.is_proposed and fits.isdisjoint(box.configs):
                    box.is_proposed, box.level, box.tries = False, min(box.level, 3), 0
        self.run()

    def _questions(self, left: list[Box], most_ns: float) -> list[tuple[Box, Question]]:
        """What to ask next: for the box that promises most, and about as much for those bounded least beside it."""
        found: list[tuple[Box, Question]] = []
        while not found and not self.budget.is_over():
            stale = self.promising is None or self.promising.level < 3 or self.promising.is_proposed
            if stale or self.promising not in left or self.promising.bound_ns >= most_ns:
                likely = [box for box in left if not box.is_proposed and box.bound_ns < most_ns]
                self.promising = self._most_promising(likely)
            if self.promising is None:
                break
            self._add_question(found, self.promising, most_ns, promises=True)
        enough = BESIDE * max((question.effort for _, question in found), default=1.0)
        while (
            sum(question.effort for box, question in found if box is not self.promising) < enough
            and not self.budget.is_over()
        ):
            asked = {question.template for _, question in found}
            taken = [self.promising, *(box for box, _ in found)]
            others = [box for box in left if box not in taken and box.level < EXHAUSTED and box.bound_ns < most_ns]
            others = [box for box in others if box.level or _first_template(box) not in asked]
            if not others:
                break
            self._add_question(found, min(others, key=lambda box: box.bound_ns), most_ns, promises=False)
        return found

    def _add_question(self, found: list[tuple[Box, Question]], box: Box, most_ns: float, *, promises: bool) -> None:
        if self.watch is not None:
            best_ns = None if math.isinf(self.best_ns) else int(self.best_ns)
            self.watch(self.turns - 1, len(self.boxes), box.config, self.bound_ns, best_ns)
        question = self._question(box, most_ns, promises=promises)
        if question is not None:
            found.append((box, question))

    def _question(self, box: Box, most_ns: float, *, promises: bool) -> Question | None:
        """What to ask next for a box; None where what is known was enough to raise its bound."""
        before_ns = box.bound_ns
        while box.bound_ns == before_ns and before_ns < most_ns and not box.is_done:
            config = box.config
            if box.level == 0:
                if config.tp * config.cp > 1:
                    return self._first_question(box)
                self._bound_layers(box, int(self.work.seconds(_plain(config)).following_s * 1e9))
                continue
            if box.within is None:
                box.within = self._within(box)
            if self._share(box) or not box.is_solved:
                box.level = max(box.level, 2)
                box.raise_bounds(most_ns)
                continue
            if box.level == 2:
                weights = self._worth_asking(box, self._on_axes(box), WORTH_SHARING * most_ns)
                if weights is not None:
                    return self._ask(config, _restricted(weights, _on_tensor_axis(config)), tensor_axis=True)
                box.level = 3
                continue
            if promises and not box.is_proposed:
                weights = self._likely_to_fit(box, most_ns)
                return self._ask(config, weights + self._a_little(box, weights), tensor_axis=False, proposes=True)
            if box.level < EXHAUSTED:
                weights = self._worth_asking(box, box.points, RISE * most_ns)
                if weights is not None:
                    return self._ask(config, weights + self._a_little(box, weights), tensor_axis=False)
            box.level = EXHAUSTED
            if not promises:
                return None
        return None

    def _worth_asking(self, box: Box, points: list[FloatArray], least_ns: float) -> FloatArray | None:
        """(SIZE,): the weights of a cut that may raise the bound by so much; None where known points forbid it.

        They lie between the prices of the bound and those of mixes of these points (Ben-Ameur and Neto 2007,
        Acceleration of cutting-plane and column generation algorithms).
        """
        weights = box.prices[box.config].weights
        if points and box.within is not None:
            among = box.within.mixed(box.config, points)
            if (among.step_ns or 0) < box.bound_ns + least_ns:
                return None
            weights = (weights + among.weights) / 2
        return weights

    def _on_axes(self, box: Box) -> list[FloatArray]:
        """What templates of a box's tensor axis are known to take, with what the box takes at least beside it."""
        config, rest = box.config, self._rest(box)
        rest[time_at("backward_ns", 0) :][:PARTS] += self._exchange_ns(config) / self.request.model.layers
        known = self.points.get(of_tensor_axis(config), [])
        return [_restricted(point, _on_tensor_axis(config)) + rest for point in known]

    def _first_question(self, box: Box) -> Question:
        return self._ask(_plain(box.configs[0]), _micro(self.request.model.layers), tensor_axis=True)

    def _ask(self, config: PlanConfig, weights: FloatArray, *, tensor_axis: bool, proposes: bool = False) -> Question:
        return Question(config, weights, tensor_axis, self.one_s, self.budget, proposes)

    def _take(self, box: Box, question: Question, answer: Answer, most_ns: float) -> None:
        """Make use of an answer."""
        if box.level == 0:
            self.points.setdefault(of_tensor_axis(question.config), []).append(answer.point)
            self._bound_layers(box, int(answer.least))
            return
        before_ns, cut = box.bound_ns, (question.weights, answer.least)
        known = self.points.setdefault(of_tensor_axis(question.config), []) if question.tensor_axis else box.points
        nearest_ns = min((float(question.weights @ (point - answer.point)) for point in known), default=math.inf)
        known.append(answer.point)
        if question.tensor_axis:
            self.cuts.setdefault(of_tensor_axis(question.config), []).append(cut)
        elif question.config.recompute is Recompute.NONE and not question.weights[OF_MICRO_BATCH].any():
            self.cuts.setdefault(of_work(question.config), []).append(cut)
        elif box.within is not None:
            box.within.add_cut(*cut)
        self._share(box)
        box.raise_bounds(most_ns)
        gained_ns = max(box.bound_ns - before_ns, nearest_ns)
        if question.tensor_axis:
            box.level = 2 if gained_ns >= WORTH_SHARING * most_ns else 3
            return
        if answer.proposed is not None:
            self._propose(box, answer.proposed, answer.point)
        if question.proposes:
            return
        box.stalled = 0 if gained_ns >= RISE * most_ns else box.stalled + 1
        box.level = box.level + 1 if box.stalled < MOST_STALLED else EXHAUSTED

    def _bound_layers(self, box: Box, least_ns: int) -> None:
        """What the layers take of a micro-batch on the tensor and context axes alone, for all boxes with these."""
        key = on_axes(box.configs[0])
        self.layers_ns[key] = least_ns
        alike = [other for other in self.boxes if other.level == 0 and on_axes(other.configs[0]) == key]
        alike = [other for other in alike if math.isfinite(other.bound_ns)]
        known = [[self._known_ns(other)] * len(other.configs) for other in alike]
        configs = [config for other in alike for config in other.configs]
        bounds = iter(least_steps_ns(self.work, configs, [ns for each in known for ns in each]))
        for other in alike:
            other.bounds_ns = [max(before, next(bounds)) for before in other.bounds_ns]
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
        exchange_ns, adding = self._gradients(config)
        within.add_exchange(exchange_ns, micro=config.num_micro_batches == 1)
        if adding is not None:
            within.add_adding(adding)
            box.adding_ns = adding.ns
        rest_s = work.micro_batch_s - work.following_s
        within.add_cut(_micro(layers), self._known_ns(box) + rest_s * 1e9 + layers * box.adding_ns)
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

    def _share(self, box: Box) -> bool:
        """Take the cuts that others have found; says whether there were any."""
        if box.within is None:
            return False
        config, found = box.configs[0], False
        rest = self._rest(box)
        of_layer_ns = self._exchange_ns(config) / self.request.model.layers + box.adding_ns
        plain = of_work(replace(config, zero_stage=0))
        for key in dict.fromkeys((of_tensor_axis(config), of_work(config), plain)):
            known, seen = self.cuts.get(key, []), box.shared.get(key, 0)
            for weights, least in known[seen:]:
                more = 0.0
                if config.zero_stage == 3 and (weights[HELD].any() or (key == plain and not _gathers_first(weights))):
                    continue  # parameters are not held as they are used
                if key == of_tensor_axis(config):
                    exchanged = weights[MICRO].reshape(-1, PARTS).min(0).sum() * of_layer_ns
                    more = float(weights @ rest) + exchanged
                box.within.add_cut(weights, least + more)
                found = True
            box.shared[key] = len(known)
        return found

    def _crowded(self, box: Box, most_ns: float) -> Bound | None:
        """Of the configuration that is likely to take least in the memory that is left in truth; None where none fits.

        Its prices are those at which proposals are likely to fit.
        """
        within, best = box.within, None
        for config, bound_ns in zip(box.configs, box.bounds_ns, strict=True):
            if within is not None and bound_ns < most_ns:
                found = within.bound(config, self._crowding(box, config), exact=False)
                if found.step_ns is not None and (best is None or found.step_ns < (best.step_ns or 0)):
                    best = found
        return best

    def _a_little(self, box: Box, priced: FloatArray) -> FloatArray:
        """(SIZE,): small weights of everything, so that what no path passes is not laid out in any way whatever.

        Bytes that have no price have none here: what other boxes may take over of the answer depends on it.
        """
        config, found = box.config, np.zeros(SIZE)
        layers = np.array([1.0, self.request.model.layers - 2, 1.0]) / config.pp
        found[TIMES] = np.tile(layers, len(PASSES))
        found[MICRO] *= config.num_micro_batches
        found[MESSAGES] = config.num_micro_batches
        for part in (HELD, SUMS, SAVED, WAITING, DEFERRED):
            if priced[part].any():
                found[part] = layers * TIE * box.bound_ns / self.request.memory_limit_bytes
        return LITTLE * found

    def _crowding(self, box: Box, config: PlanConfig) -> float:
        """Bytes that a configuration holds beside those that bounds count, as proposals have shown."""
        of_sample = self.crowding.get(config.schedule, 0.0)
        return box.crowding.get(config.schedule, of_sample * config.micro_batch / (config.tp * config.cp))

    def _likely_to_fit(self, box: Box, most_ns: float) -> FloatArray:
        """The weights of proposals: bytes count what they are worth in the memory that is left in truth, or more.

        They count more with every proposal that did not fit.
        """
        crowded = self._crowded(box, most_ns)
        weights = (box.prices[box.config] if crowded is None else crowded).weights.copy()
        if crowded is None or box.tries:
            config = box.config
            layers = parts_at(config, self.request.model.layers)[0].sum(0).astype(float)
            least = TIE * box.bound_ns / self.request.memory_limit_bytes * layers
            in_flight = min(config.pp, config.num_micro_batches)
            for part, often in ((HELD, 1), (SUMS, 1), (SAVED, in_flight), (WAITING, in_flight)):
                weights[part] = HARDER**box.tries * np.maximum(weights[part], often * least)
        return weights

    def _propose(self, box: Box, answer: Proposed, point: FloatArray) -> None:
        """Add the configurations of a box under the layouts that cost least; says how crowded memory is with them."""
        request, best_ns, within = self.request, self.best_ns, box.within
        overlaps, least_ns, fitting_ns = request.cost.cluster.overlaps, math.inf, math.inf
        for one in box.configs:
            if within is None or within.step_ns(one, point) >= best_ns:
                continue
            found = pipelined(answer.parts, one, request.model.layers, answer.between_ns, overlaps=overlaps)
            proposal = LayoutProposal(found, answer.signatures, answer.deep_ops)
            self.known.proposals.append(proposal)
            least_ns = min(least_ns, found.step_ns)
            if self.known.fits(request, proposal):
                fitting_ns = min(fitting_ns, found.step_ns)
            held = self.known.margin(one.schedule) * max(found.peak_bytes)
            box.crowding[one.schedule] = max(0.0, held - within.held_bytes(one, point))
            self.crowding[one.schedule] = box.crowding[one.schedule] * one.tp * one.cp / one.micro_batch
        box.tries += 1
        is_last = box.tries >= (MOST_TRIES if math.isfinite(self.best_ns) else FIRST_TRIES)
        if is_last and math.isinf(fitting_ns) and math.isfinite(least_ns):
            self.too_many[_of_memory(box.config)] = box.config.micro_batch
        box.is_proposed |= is_last or math.isinf(least_ns) or fitting_ns <= (1 + SETTLED) * least_ns

    def _most_promising(self, boxes: list[Box]) -> Box | None:
        """The box that is thought to take least; what was thought of others is not looked at again for that."""
        while boxes:
            best = min(boxes, key=lambda box: box.promise[1])
            before_ns, least_ns = best.promise[1], self._promise(best)
            if least_ns <= before_ns or all(least_ns <= box.promise[1] for box in boxes):
                return best
        return None

    def _promise(self, box: Box) -> float:
        """What a box is thought to take at least, in nanoseconds; remembered as long as nothing more is known of it.

        What is bounded in memory takes what it takes in the memory that is left in truth, by all cuts so far.
        """
        too_many = self.too_many.get(_of_memory(box.configs[0]), math.inf) <= box.configs[0].micro_batch
        state = too_many, box.bound_ns, 0 if box.within is None else len(box.within.cuts), tuple(self.crowding.values())
        if box.promise[0] != state:
            if not math.isfinite(box.bound_ns):
                guess_ns = math.inf
            elif box.level < 2:
                guess_ns = self._guess_ns(box)
            else:
                crowded = self._crowded(box, math.inf)
                guess_ns = float(crowded.step_ns or 0) if crowded is not None else UNLIKELY * box.bound_ns
            box.promise = state, UNLIKELY * guess_ns if too_many else guess_ns
        return box.promise[1]

    def _guess_ns(self, box: Box) -> float:
        """By a rule of thumb."""
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


def _of_memory(config: PlanConfig) -> object:
    """What decides on the memory that a sample takes."""
    return config.dp, config.tp, config.cp, config.pp, config.zero_stage, config.recompute


def _plain(config: PlanConfig) -> PlanConfig:
    """A single micro-batch of which everything is kept: what others take more time than."""
    return replace(
        config, recompute=Recompute.NONE, num_micro_batches=1, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B
    )


def _on_tensor_axis(config: PlanConfig) -> tuple[slice, ...]:
    """The coordinates that a template of the tensor axis counts as those do that have a data axis too."""
    following = MICRO, SAVED, WAITING, DEFERRED
    return following if config.zero_stage == 3 else (*following, HELD)


def _restricted(numbers: FloatArray, coordinates: Sequence[slice]) -> FloatArray:
    """(SIZE,): some coordinates alone."""
    found = np.zeros(SIZE)
    for part in coordinates:
        found[part] = numbers[part]
    return found


def _gathers_first(weights: FloatArray) -> bool:
    """Whether it costs no more to gather parameters once, ahead of all micro-batches, than in each of them."""
    forward, before = (weights[PARTS * PASSES.index(name) :][:PARTS] for name in ("forward_ns", "before_ns"))
    return bool((forward >= before).all())


def _micro(layers: int) -> FloatArray:
    """(SIZE,): all that a micro-batch takes."""
    weights = np.zeros(SIZE)
    weights[MICRO] = np.tile([1.0, layers - 2, 1.0], 3)
    return weights


def _first_template(box: Box) -> object:
    """What its first question is about."""
    return Question(_plain(box.configs[0]), np.zeros(SIZE), tensor_axis=True, most_s=0.0, budget=UNLIMITED).template
