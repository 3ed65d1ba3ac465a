"""Answers: what templates say under weights; all that a search asks again and again, and any process can answer."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strategy.base.budget import Budget
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.point import FloatArray
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Boxings, Converter
from strategy.models import Model
from strategy.search.template.parts import ModelParts, parts_of
from strategy.search.template.stages import messages_ns
from strategy.search.template.template_solve import solve_template
from strategy.space.candidates import Request, placements_of
from strategy.space.short_model import multiplicities

MOST_TEMPLATES = 16
"""So many are kept, the latest; one of two axes holds some ten MiB."""


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
    """

    config: PlanConfig
    weights: FloatArray
    tensor_axis: bool
    most_s: float
    budget: Budget
    proposes: bool = False

    @property
    def effort(self) -> float:
        """About how much work it is to answer it, beside others."""
        return 1.0 if self.tensor_axis else 3.0

    @property
    def template(self) -> object:
        """What the template depends on."""
        config = self.config
        alike = (*on_axes(config), config.recompute)
        return alike if self.tensor_axis else (*alike, config.dp, config.num_micro_batches, config.zero_stage)


@dataclass(frozen=True, slots=True, eq=False)
class Proposed:
    """The layouts that cost least, and what a model is that has them.

    Attributes:
        signatures: of the short model's ops.
        parts: what the parts take and hold, in full.
        between_ns: what is handed on between stages, forward and backward.
        deep_ops: ops of the deep model.
    """

    signatures: Mapping[str, Signature]
    parts: ModelParts
    between_ns: tuple[int, int]
    deep_ops: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The least cost, the point that it was found at, and, but for a tensor axis alone, the layouts that are there."""

    least: float
    point: FloatArray
    proposed: Proposed | None


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
            InfeasibleError: no choice is legal.
            OutOfTimeError: there was no time to find any.
        """
        make = LayerTemplate.of_tensor_axis if question.tensor_axis else LayerTemplate.of
        template = self._once(question, make, question.budget)
        deadline_s = min(question.budget.deadline_s, time.monotonic() + question.most_s)
        budget = Budget(deadline_s, question.budget.max_entries)
        least, signatures, point = solve_template(template, question.weights, budget)
        if question.tensor_axis:
            return Answer(least, point, None)
        graph = template.space.graph
        parts = parts_of(graph, *template.arranged(signatures), self.request.cost)
        converter = Converter(self.request.cost, placements_of(question.config)[:2])
        between_ns = messages_ns(template.space, signatures, converter)
        counts = multiplicities(graph, self.request.model.layers)
        deep_ops = sum(counts.get(op.name, 1) for op in graph.ops)
        return Answer(least, point, Proposed(signatures, parts, between_ns, deep_ops))

    def _once(
        self,
        question: Question,
        make: Callable[[Request, Model, PlanConfig, Budget, Boxings], LayerTemplate],
        budget: Budget,
    ) -> LayerTemplate:
        key = question.template
        if key not in self.known:
            self.known[key] = make(self.request, self.short, question.config, budget, self.boxings)
            if len(self.known) > MOST_TEMPLATES:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]


def on_axes(config: PlanConfig) -> tuple[object, ...]:
    """What a template without data axis depends on, recomputing aside."""
    return config.tp, config.cp, config.context, config.micro_batch
