"""Answers: what templates say under weights; all that a search asks again and again, and any process can answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import SIZE, FloatArray
from strategy.bounds.template_cut import TemplateCut, TemplateName, ways_of
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Boxings
from strategy.models import Model
from strategy.search.template.layer_mix import Seam, seam_of
from strategy.search.template.parts import ModelParts, parts_of
from strategy.search.template.stages import Messages, stage_messages
from strategy.search.template.template_solve import solve_template, weighing_of
from strategy.space.axis_orders import placements_of
from strategy.space.problem_builder import Weighing
from strategy.space.request import Request
from strategy.space.short_model import multiplicities

MOST_TEMPLATES = 16
"""So many are kept, the latest; one of two axes holds some ten MiB."""
WITH_DATA, WITH_EXPERTS = 3.0, 6.0
"""How much more work a template is with a data axis, and with one along which experts are shared out beside others."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What the layouts of a configuration's template cost at least.

    Attributes:
        config: whose.
        weights: (SIZE,), of the coordinates of a point.
        tensor_axis: whether of what every data axis has alike, without that axis.
        most_s: seconds that it may take.
        budget: when all must end.
        proposes: whether it is asked for the layouts that cost least, whatever it says of the bound.
        of_bytes: whether it is about what is held, not about time.
    """

    config: PlanConfig
    weights: FloatArray
    tensor_axis: bool
    most_s: float
    budget: Budget
    proposes: bool = False
    of_bytes: bool = False

    @property
    def effort(self) -> float:
        """About how much work it is to answer it, beside others."""
        alone = 1.0 if self.tensor_axis else WITH_DATA
        return alone * (WITH_EXPERTS if self.config.ep > 1 and self.config.tp * self.config.cp > 1 else 1.0)

    @property
    def template(self) -> TemplateName:
        """Which it is about."""
        return TemplateName(self.config, self.tensor_axis)


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """The layouts that cost least, and what a model is that has them.

    Attributes:
        signatures: of the short model's ops.
        parts: what the parts take and hold, in full.
        messages: what is handed on between stages.
        deep_ops: ops of the deep model.
        seam: how layers meet, see `seam_of`.
        keeps: whether the layers between keep all, though the configuration computes something again.
    """

    signatures: Mapping[str, Signature]
    parts: ModelParts
    messages: Messages
    deep_ops: int
    seam: Seam
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The point of a choice that costs least, and, but for a tensor axis alone, the layouts that are there."""

    point: FloatArray
    proposed: Proposed | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The least cost, and what was found: of every way to treat the layers between (`kept_layers`), if one is legal."""

    cut: TemplateCut
    found: tuple[Found, ...]


WORK, TENSOR_WORK = 200, 10
"""Millions of entries read for a template, and for one of a tensor axis: its bound is near after the first messages,
and a choice that takes longer to find is nobody's layout."""


@dataclass(slots=True)
class Templates:
    """Templates of a short model, each built once."""

    request: Request
    short: Model
    known: OrderedDict[object, LayerTemplate] = field(default_factory=OrderedDict)
    boxings: Boxings = field(default_factory=dict)
    """Conversions that were priced for one of them."""

    def answer(self, question: Question) -> Answer:
        """Solve a template.

        Raises:
            OutOfTimeError: there was no time to find any choice.
        """
        names = ways_of(self.request, question.template)
        try:
            templates = [self.of(name, question.budget) for name in names]
        except InfeasibleError:  # pins leave an op of one of them, and so of all, without signature
            nothing = [TemplateCut(name, Weighing.of(np.zeros(SIZE), 0, 0), None, None) for name in names]
            return Answer(_of_both(nothing), ())
        weighing = weighing_of(templates, question.weights)
        answers = [self._solved(question, *way, weighing) for way in zip(names, templates, strict=True)]
        return Answer(_of_both([cut for cut, _ in answers]), tuple(found for _, found in answers if found is not None))

    def _solved(
        self, question: Question, name: TemplateName, template: LayerTemplate, weighing: Weighing
    ) -> tuple[TemplateCut, Found | None]:
        """The cut of one template, and what was found."""
        budget = question.budget.at_most(question.most_s).with_work(TENSOR_WORK if question.tensor_axis else WORK)
        found = solve_template(name, template, weighing, budget)
        if isinstance(found, TemplateCut):
            return found, None
        if question.tensor_axis:
            return found.cut, Found(found.point, None)
        graph = template.space.graph
        parts = parts_of(graph, *template.arranged(found.signatures), self.request.cost)
        placements = placements_of(question.config)
        messages = stage_messages(template.space, found.signatures, self.request.cost, placements, {})
        counts = multiplicities(graph, self.request.model.layers)
        deep_ops = sum(counts.get(op.name, 1) for op in graph.ops)
        seam = seam_of(graph, template.space.stages, found.signatures)
        keeps = bool(name.config.kept_layers)
        return found.cut, Found(found.point, Proposed(found.signatures, parts, messages, deep_ops, seam, keeps))

    def of(self, name: TemplateName, budget: Budget) -> LayerTemplate:
        """The template of a name.

        Raises:
            OutOfTimeError: there was no time to build it.
            InfeasibleError: the pins leave an op without signature.
        """
        if name.key not in self.known:
            self.known[name.key] = LayerTemplate.named(name, self.request, self.short, budget, self.boxings)
            if len(self.known) > MOST_TEMPLATES:
                self.known.popitem(last=False)
        self.known.move_to_end(name.key)
        return self.known[name.key]


def _of_both(cuts: Sequence[TemplateCut]) -> TemplateCut:
    """The cut of all ways."""
    first, *others = cuts
    return replace(first, other=others[0]) if others else first
