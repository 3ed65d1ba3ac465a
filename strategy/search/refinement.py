"""Refinement: bounds of all configurations, raised where it matters, and proposals of layouts on the way.

    level 0   every configuration, by the least work that it can do with              `configurations`
    level 1   what layers take on the tensor and context axes, communication included `template`
    level 2   the least step along paths through the schedule, in the memory that there is, by cuts that all boxes
              with the same tensor and context axes share                             `outer_approximation`
    level 3   cuts by layout problems of the box's own, whose answers are proposals

A *box* holds the configurations of one mesh, micro-batch and way to save memory. In every turn boxes are refined
side by side: those which promise most, as far as is known by then, among those without proposals that fit, and those
with the least bounds. A box whose bound is not below the best objective by more than the gap is left as it is; the
bound of the answer is the least of all boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType

import numpy as np

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.interruption import put_off
from strategy.bounds.certificate import BoundCertificate
from strategy.bounds.closed_forms import all_of_micro_batch, is_shared, plain
from strategy.bounds.configurations import MeshGroup
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.least_work import LeastWork
from strategy.bounds.point import SAVED, SIZE, WAITING, FloatArray
from strategy.bounds.template_cut import TemplateName, of_tensor_axis, on_tensor_axis, restricted
from strategy.layout.config import PlanConfig
from strategy.models import Model
from strategy.search.box import EXHAUSTED, Box
from strategy.search.by_bound import ByBound
from strategy.search.certify import certified
from strategy.search.prospects import COSTLY, COSTLY_IN_A_HURRY, Prospects
from strategy.search.search_result import Watch
from strategy.search.second_box import second_box
from strategy.search.shared_cuts import SharedCuts
from strategy.search.template.answers import Answer, Question
from strategy.search.workers import WORKERS, Outcome, Workers, workers_of
from strategy.space.request import Request
from strategy.space.short_model import MIDDLE

MOST_STALLED, MOST_RESUMED = 2, 6
"""So many cuts in turn may gain nothing before no further one is looked for; and so often again, in the end."""
PRESENT = 2e-3
"""A bound is a mix of the ways to treat layers of which more than this share of the layers is treated so."""
RISE, WORTH_SHARING = 1e-3, 3e-3
"""Part of the objective by which a further cut has to raise a bound, of the box's own and of all that share it."""
CLOSER = 0.1
"""Where little is left below the objective, a cut that gains this part of it gains enough."""
SCARCE = 0.7
"""Part of the memory from which on it is asked how little layers can save."""
PROMISING = 2
"""So many boxes that promise most are asked for layouts side by side."""
BALANCING = 0.25
"""Part of the time that is left for mixes of ways that both fit."""
BESIDE = 2.0
"""By this part of what is asked for the box that promises most, more is asked for those that are bounded least."""
BESIDE_PLAN = 2.0
"""Beside a plan so much is asked for as takes this many times as long as the plan is expected to."""
LOOKING = 0.25
"""Of that time, what may be spent on finding what to ask."""
AT_LEAST = 6
"""So many questions are asked at a time, if there are: processes wait for the last answer."""
ALONE_EFFORT = 3.0
"""So much is asked of every process where no box promises anything, by the measure of `Question.effort`."""
MOST_RAISED = 12
"""So many boxes are bounded beside a question for what promises most, by what is known, for each of its effort."""
CERTIFYING_S = 5e-4
"""Of the certificate, for a configuration that a linear program has bounded."""
ONE_SHARE, ONE_S = 0.4, 2.0
"""Share of the time until the first plan, and seconds at least, for a single template: it ends with a bound and a
choice, not the best."""


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
        workers: Workers | None = None,
    ) -> None:
        self.request, self.work, self.budget, self.watch = request, work, budget, watch
        self.workers = workers or workers_of(request, short)
        self.cuts = SharedCuts(request, work)
        self.prospects = Prospects(request, work, self.cuts.forms)
        self.known = self.prospects.known
        self.one_s = max(ONE_S, ONE_SHARE * budget.left_s())
        self.boxes: list[Box] = []
        self.widen(request, groups, groups)
        self.promising: Box | None = None
        self.hurries = False
        """Whether it is time for some layouts, of a box of which little more than that it promises most is known."""
        self.turns, self.turn_bound_ns = 0, self.bound_ns

    def widen(self, request: Request, groups: Sequence[MeshGroup], new: Sequence[MeshGroup]) -> list[Box]:
        """Refine a space of such groups, those that are `new` too; the boxes of these."""
        firsts = [group.configs[0] for group in new]
        self.work.find([*firsts, *map(plain, firsts)])
        boxes, in_order = [self._box(group) for group in new], sorted(groups, key=lambda group: group.place)
        listed = [config for group in in_order for config in group.configs]
        with self._whole():
            self.request = self.cuts.request = request
            self.boxes, self.listed = self.boxes + boxes, listed
            self.cuts.know(boxes)
        return boxes

    def __enter__(self) -> Refinement:
        if not self.workers.others:
            self.workers.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.workers.__exit__(kind, error, at)

    def _box(self, group: MeshGroup) -> Box:
        """Of a group, without what cannot fit."""
        fits = self.cuts.forms.fitting(group.configs)
        bounds = [float(bound_ns) if fit else math.inf for bound_ns, fit in zip(group.bounds_ns, fits, strict=True)]
        return Box(group.configs, bounds)

    @property
    def bound_ns(self) -> int:
        """No configuration takes less."""
        least = min(box.bound_ns for box in self.boxes)
        return int(least) if math.isfinite(least) else 0

    @property
    def best_ns(self) -> float:
        """The least that plans take, and what is likely to fit."""
        return self.prospects.best_ns

    @property
    def most_ns(self) -> float:
        """A bound of so much proves enough: of the best that is known, and of the plan that is the answer so far."""
        return (1 - self.request.gap) * max(self.best_ns, self.known.answer_ns)

    @property
    def certifying_s(self) -> float:
        """About how long the certificate takes, as busy as the machine is."""
        count = sum(len(box.configs) for box in self.boxes if box.within is not None)
        return CERTIFYING_S * max(self.known.pace, 1.0) * count

    def certificate(self, most_ns: int) -> tuple[BoundCertificate | None, int]:
        """Of the bound, or of as much as is of interest; and that bound, or a little less where rounding takes from it.

        There is none where something is pinned that certificates do not speak of.
        """
        return certified(self.cuts, self.boxes, self.listed, min(self.bound_ns, most_ns))

    def run(self, *, near: float = 0.0, is_enough: Callable[[], bool] | None = None) -> None:
        """Refine, until nothing is left or the time is over; or the best is as near to the bound as this multiple.

        Or until something says that it `is_enough`.
        """
        while not (near and math.isfinite(self.best_ns) and self.best_ns <= near * self.bound_ns):
            most_ns = self.most_ns
            left = [box for box in self.boxes if box.bound_ns < most_ns and not box.is_done] or self._stalled(most_ns)
            if not left:
                self.known.complete = not any(box.bound_ns < most_ns for box in self.boxes)
                return
            if self.budget.is_over() or (is_enough is not None and is_enough()):
                self.known.complete = False
                return
            self.turns, self.turn_bound_ns = self.turns + 1, self.bound_ns
            with self._whole():
                self._take_turn(left, most_ns)

    def _stalled(self, most_ns: float) -> list[Box]:
        """What is to be refined again where nothing else is left: the next cuts may gain what the last ones did not."""
        found = [box for box in self.boxes if box.bound_ns < most_ns and box.resumed < MOST_RESUMED]
        for box in found:
            box.resume()
        return found

    def _take_turn(self, left: list[Box], most_ns: float) -> None:
        """Refine what promises most, and what is bounded least; that is looked for while others are under way."""
        asked = list[tuple[Box, Question]]()
        outcomes = self.workers.answers(self._asked(left, most_ns, asked))
        self._take_all(asked, outcomes, most_ns)

    def _asked(self, left: list[Box], most_ns: float, asked: list[tuple[Box, Question]]) -> Iterator[Question]:
        """What is to be asked in a turn, one by one as it is found, and of which box."""
        for box, question in self._promised(left, most_ns):
            asked.append((box, question))
            yield question
        if not (asked and self._wants_layouts()):
            for box, question in self._beside(left, tuple(asked), most_ns):
                asked.append((box, question))
                yield question

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """An interruption ends this as the end of the time would, and is raised afterwards: nothing is half known."""
        before = self.budget
        with put_off() as interruption:
            self.budget = before.until(interruption)
            try:
                yield
            finally:
                self.budget = before

    def _take_all(self, questions: list[tuple[Box, Question]], outcomes: list[Outcome], most_ns: float) -> None:
        for (box, question), outcome in zip(questions, outcomes, strict=True):
            if isinstance(outcome, Answer):
                self._take(box, question, outcome, most_ns)
            elif not self.budget.is_over():
                box.level, box.is_proposed = EXHAUSTED, True

    def meanwhile(self, work: Callable[[], None], budget: Budget, about_s: float) -> None:
        """Do something else, while other processes answer questions of the boxes that are bounded least.

        `about_s` is what it is expected to take, by which it is told how much to ask for.
        """
        self.budget, most_ns = budget, self.most_ns
        left = [box for box in self.boxes if box.bound_ns < most_ns and not box.is_done]
        effort, looking = BESIDE_PLAN * about_s / self.workers.effort_s, budget.at_most(LOOKING * about_s)
        with self._whole():
            asked = list(self._beside(left, (), most_ns, effort, looking)) if self.workers.others else []
        outcomes = self.workers.meanwhile([question for _, question in asked], work)
        answered = [(pair, one) for pair, one in zip(asked, outcomes, strict=True) if one is not None]
        self._take_all([pair for pair, _ in answered], [one for _, one in answered], most_ns)

    def ask_for_layouts(self, boxes: Sequence[Box], budget: Budget) -> None:
        """Ask boxes for layouts at once, of which little more than that they promise much is known."""
        self.budget, most_ns, asked = budget, self.most_ns, list[tuple[Box, Question]]()
        with self._whole():
            for box in boxes:
                self._skip_to_layouts(box, most_ns)
                if box.bound_ns < most_ns:
                    asked.append((box, self._layouts_question(box, most_ns)))
            self._take_all(asked, self.workers.answers([question for _, question in asked]), most_ns)

    def _layouts_question(self, box: Box, most_ns: float) -> Question:
        weights = self.prospects.likely_to_fit(box, most_ns)
        weights = weights + self.prospects.a_little(box, weights)
        return self._ask(box.config, weights, tensor_axis=False, proposes=True)

    def go_on(self, budget: Budget, *, near: float = 0.0, is_enough: Callable[[], bool] | None = None) -> None:
        """Refine with more time; where plans held more than was thought, boxes are asked for lighter proposals."""
        self.budget, self.hurries = budget, not self.known.fitting(self.request)
        self.prospects.costly = COSTLY_IN_A_HURRY if self.hurries else COSTLY
        with self._whole():
            self._ask_anew()
        self.run(near=near, is_enough=is_enough)

    def balance(self) -> None:
        """Mix ways that both fit, of all that may be better: where nothing else is left to plan."""
        most_ns = self.most_ns
        below = [box for box in self.boxes if box.bound_ns < most_ns]
        self.prospects.propose_mixed_anew(below, self.budget.share(BALANCING).is_over, balances=True)

    def _ask_anew(self) -> None:
        if self.known.margins:
            self.prospects.propose_mixed_anew(self.boxes, self.budget.is_over)
        if self.known.refused:
            fits = {one.found.config for one in self.known.fitting(self.request)}
            for box in self.boxes:
                if box.is_proposed and fits.isdisjoint(box.configs):
                    box.weigh_anew()
                    box.level = min(box.level, 3)

    def _promised(self, left: list[Box], most_ns: float) -> Iterator[tuple[Box, Question]]:
        """What to ask next for the boxes that promise most, if any do."""
        found: list[tuple[Box, Question]] = []
        while len(found) < PROMISING and not self.budget.is_over():
            taken = {box for box, _ in found}
            axes = {box.axes for box, _ in found if box.level == 0}
            likely = [box for box in left if not box.is_proposed and box.bound_ns < most_ns and box not in taken]
            likely = [box for box in likely if box.level or box.axes not in axes]
            promising = self.prospects.most_promising(likely, None if found else self.promising)
            if found and promising is not None:
                promising = second_box(self.prospects, found[0][0], likely) or promising
            if promising is not None and promising.promise[1] >= self.best_ns:
                # Nothing better is expected: first of all the bounds are raised.
                promising = None if found or any(box.level < EXHAUSTED for box in left) else promising
            if not found:
                self.promising = promising
            if promising is None:
                break
            question = self._told_question(promising, most_ns, promises=True)
            if question is not None:
                found.append((promising, question))
                yield promising, question

    def _beside(
        self,
        left: list[Box],
        first: Sequence[tuple[Box, Question]],
        most_ns: float,
        least_effort: float = 0.0,
        looking: Budget = UNLIMITED,
    ) -> Iterator[tuple[Box, Question]]:
        """About as much for the boxes that are bounded least, and so much at least; as far as is found in time."""
        found: list[tuple[Box, Question]] = []
        enough = max(BESIDE * first[0][1].effort if first else 0.0, (1 + WORKERS) * ALONE_EFFORT, least_effort)
        left_to_raise = round(MOST_RAISED * first[0][1].effort) if first else len(left)
        asked, waiting = {box.told_by for box, _ in first}, ByBound(left)

        def is_open(box: Box) -> bool:
            return box.level < EXHAUSTED and box.told_by not in asked

        while left_to_raise and not self.budget.is_over() and not looking.is_over():
            if sum(question.effort for _, question in found) >= enough and len(first) + len(found) >= AT_LEAST:
                break
            left_to_raise -= 1
            least = waiting.least(is_open)
            if least is None or least.bound_ns >= most_ns:
                break
            question = self._told_question(least, most_ns, promises=False)
            if question is not None:
                found.append((least, question))
                asked.add(least.told_by)
                yield least, question

    def _told_question(self, box: Box, most_ns: float, *, promises: bool) -> Question | None:
        """The question of a box; whoever watches is told of it."""
        if self.watch is not None:
            best_ns = None if math.isinf(self.best_ns) else int(self.best_ns)
            self.watch(self.turns - 1, len(self.boxes), box.config, self.turn_bound_ns, best_ns)
        return self._question(box, most_ns, promises=promises)

    def _question(self, box: Box, most_ns: float, *, promises: bool) -> Question | None:
        """What to ask next for a box; None where what is known was enough to raise its bound."""
        if promises and self._wants_layouts():
            self._skip_to_layouts(box, most_ns)
        before_ns = box.bound_ns
        while box.bound_ns == before_ns and before_ns < most_ns and not box.is_done:
            config = box.config
            if box.level == 0 and (not is_shared(config) or box.axes in self.cuts.of_layers):
                self.cuts.bound_layers(box, None)
                continue
            if box.level < 2 and not box.counts_exchanges and (box.level or self.cuts.is_soon_counted(box)):
                self.cuts.count_exchanges(box)
                continue
            if box.level == 0:
                whole = all_of_micro_batch(self.request.model.layers)
                question = self._ask(plain(box.configs[0]), whole, tensor_axis=True)
                if self.cuts.bound_in_memory(box, question.effort, most_ns):
                    continue
                return question
            self.cuts.begin(box)
            if self.cuts.share(box) or not box.is_solved:
                box.level = max(box.level, 2)
                box.raise_bounds(most_ns)
                continue
            if box.level == 2:
                weights = self._of_saved(box)
                if weights is not None:
                    return self._ask(
                        config, weights + self.prospects.a_little(box, weights), tensor_axis=True, of_bytes=True
                    )
                weights = self._worth_asking(box, self.cuts.known_points(box), WORTH_SHARING * most_ns)
                shared = np.zeros(0) if weights is None else restricted(weights, on_tensor_axis(config))
                if shared.any():
                    way = self._way(box, self.cuts.points, shared, tensor_axis=True)
                    return self._ask(way, shared, tensor_axis=True)
                box.level = 3
                continue
            # A cut that closes the box is found sooner than layouts, and one that does not has layouts as well.
            if promises and not box.is_proposed and (box.level > 3 or math.isinf(most_ns)):
                return self._layouts_question(box, most_ns)
            if box.level < EXHAUSTED:
                weights = self._worth_asking_alone(box, min(RISE * most_ns, most_ns - box.bound_ns))
                if weights is not None:
                    way = self._way(box, box.points, weights, tensor_axis=False)
                    enough_ns = box.enough_ns(weights, most_ns)
                    return self._ask(way, weights, tensor_axis=False, enough_ns=enough_ns)
            box.level = EXHAUSTED
            if not promises:
                return None
        return None

    def _wants_layouts(self) -> bool:
        """Whether it is time for some that fit, before all else."""
        return self.hurries and not self.known.fitting(self.request)

    def _skip_to_layouts(self, box: Box, most_ns: float) -> None:
        """Let a box be asked for layouts next, by prices of what is known without templates of its axes."""
        if box.level < 3:
            self.cuts.begin(box)
            self.cuts.share(box)
            box.level = 3
            box.raise_bounds(most_ns)

    def _of_saved(self, box: Box) -> FloatArray | None:
        """(SIZE,): the weights of what a layer saves; once, where by what is known of it memory would be scarce."""
        key, within = of_tensor_axis(box.config), box.within
        known = self.cuts.points.get(key)
        if known is None or within is None or key in self.cuts.weighed:
            return None
        saved = within.held_bytes(box.config, restricted(known[-1], (SAVED, WAITING)))
        if saved < SCARCE * self.request.memory_limit_bytes:
            return None
        self.cuts.weighed.add(key)
        weights = np.zeros(SIZE)
        weights[[SAVED.start + MIDDLE, WAITING.start + MIDDLE]] = box.bound_ns / self.request.memory_limit_bytes
        return weights

    def _templates(self, box: Box, *, tensor_axis: bool) -> list[TemplateName]:
        """Of every way to treat the layers between."""
        return [TemplateName(way, tensor_axis) for way in ways_of(self.request, box.config)]

    def _way(
        self, box: Box, points: Mapping[object, Sequence[FloatArray]], weights: FloatArray, *, tensor_axis: bool
    ) -> PlanConfig:
        """Of the ways that the bound is a mix of, that of which a cut with these weights may raise it most.

        That is by no more than the best of its points that are known costs more than what the bound has of it.
        """
        bound, names = box.prices[box.config], self._templates(box, tensor_axis=tensor_axis)

        def may_gain(i: int) -> tuple[float, float]:
            known, share = points.get(names[i].key, ()), bound.shares[i]
            least = min((float(weights @ (point - bound.points[i])) for point in known), default=math.inf)
            return (share * least if share > PRESENT else -math.inf), share

        return names[max(range(len(names)), key=may_gain)].config

    def _worth_asking_alone(self, box: Box, least_ns: float) -> FloatArray | None:
        """The same of a cut by a template of the box's own.

        Before any of its points is known, the mixes are of what its tensor axis takes, with what is beside that.
        """
        points = [box.points.get(one.key, []) for one in self._templates(box, tensor_axis=False)]
        nearer = box.stalled == 0
        weights = self._worth_asking(box, points, least_ns, nearer=nearer)
        if nearer and box.within is not None and not any(points):
            shared = self.cuts.known_points(box)
            weights = box.within.mixed(box.config, shared).weights if all(shared) else weights
        # A cut that weighs what has no price holds little: the point of the bound has more of that.
        return weights + self.prospects.a_little(box, weights) if nearer and weights is not None else weights

    def _worth_asking(
        self, box: Box, points: Sequence[Sequence[FloatArray]], least_ns: float, *, nearer: bool = True
    ) -> FloatArray | None:
        """(SIZE,): the weights of a cut that may raise the bound by so much; None where known points forbid it.

        They are the prices of mixes of these points, by which Dantzig and Wolfe's method asks. They are near to those
        of the answer from the first point on, while the prices of a bound by few cuts are not, and what lies between
        the two (Ben-Ameur and Neto 2007) comes half as near with every cut. Where the last such cut did not raise the
        bound, they are its prices: a cut there does, if any.
        """
        weights = box.prices[box.config].weights
        shares = box.prices[box.config].shares
        if box.within is not None and all(
            known or share <= PRESENT for known, share in zip(points, shares, strict=True)
        ):
            among = box.within.mixed(box.config, points)
            if (among.step_ns or 0) < box.bound_ns + least_ns:
                return None
            weights = among.weights if nearer else weights
        return weights

    def _ask(
        self,
        config: PlanConfig,
        weights: FloatArray,
        *,
        tensor_axis: bool,
        proposes: bool = False,
        of_bytes: bool = False,
        enough_ns: float | None = None,
    ) -> Question:
        return Question(config, weights, tensor_axis, self.one_s, self.budget, proposes, of_bytes, enough_ns)

    def _take(self, box: Box, question: Question, answer: Answer, most_ns: float) -> None:
        """Make use of an answer."""
        if answer.point is None:
            box.close(answer.cut)
            return
        if box.level == 0:
            self.cuts.points.setdefault(question.template.key, []).append(answer.point)
            self.cuts.bound_layers(box, answer.cut)
            return
        before_ns, nearer_ns = box.bound_ns, self.cuts.take(box, answer.cut, answer.point)
        box.raise_bounds(most_ns)
        gained_ns = max(box.bound_ns - before_ns, nearer_ns)
        if question.tensor_axis:
            box.level = 2 if gained_ns >= WORTH_SHARING * most_ns or question.of_bytes else 3
            return
        if answer.proposed is not None and (question.proposes or not box.stalled):
            self.prospects.propose(box, answer.proposed, answer.point, answer.kept)
        if question.proposes:
            return
        box.stalled = 0 if gained_ns >= min(RISE * most_ns, CLOSER * (most_ns - before_ns)) else box.stalled + 1
        box.level = box.level + 1 if box.stalled < MOST_STALLED else EXHAUSTED
