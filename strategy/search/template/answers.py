"""Answers: what templates say under weights; all that a search asks again and again, and any process can answer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.one_mesh import on_one_stage
from strategy.bounds.point import SIZE, FloatArray
from strategy.bounds.template_cut import TemplateCut, TemplateName
from strategy.bounds.tied import NOT_TIED, TiedMessages
from strategy.graph.signature import Signature
from strategy.layout.arrangement import arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter, lay_out
from strategy.models import Model
from strategy.sbp.placement import Placement
from strategy.search.template.layer_mix import Seam, seam_of
from strategy.search.template.parts import ModelParts, parts_of, slowest_parts
from strategy.search.template.stages import Messages, stage_messages
from strategy.search.template.template_solve import solve_template
from strategy.search.template.tied_messages import tied_messages
from strategy.space.axis_orders import placements_of, unlike_stages
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.problem_builder import Weighing
from strategy.space.request import Request
from strategy.space.short_model import multiplicities
from strategy.space.space import SearchSpace

MOST_TEMPLATES, MOST_SHARED = 12, 150
"""So many are kept, the latest; and of those of a tensor axis, which are asked for by many boxes. One of two axes holds
some ten MiB, one of a tensor axis a fourth of that."""
WITH_DATA, WITH_EXPERTS = 4.0, 3.0
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
        enough_ns: a bound of so much is all that is wanted, if it is known how much is.
    """

    config: PlanConfig
    weights: FloatArray
    tensor_axis: bool
    most_s: float
    budget: Budget
    proposes: bool = False
    of_bytes: bool = False
    enough_ns: float | None = None

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
        tied: what the first and the last of these hand each other once per step.
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
    tied: TiedMessages = NOT_TIED

    @property
    def layouts(self) -> tuple[bool, Mapping[str, Signature]]:
        """What tells one way from another."""
        return self.keeps, self.signatures


@dataclass(frozen=True, slots=True)
class Answer:
    """The least cost, the point that was found, and, but for a tensor axis alone, the layouts that are there.

    Where no choice is legal there is no point. `kept` are the same layouts with all kept in the layers between, where
    they may keep what others compute again.
    """

    cut: TemplateCut
    point: FloatArray | None
    proposed: Proposed | None
    kept: Proposed | None = None


WORK, TENSOR_WORK = 200, 1
"""Millions of entries read for a template, and for one of a tensor axis: its bound is near after the first messages,
and a choice that takes longer to find is nobody's layout."""


@dataclass(slots=True)
class Templates:
    """Templates of a short model, each built once."""

    request: Request
    short: Model
    known: OrderedDict[object, LayerTemplate] = field(default_factory=OrderedDict)
    shared: OrderedDict[object, LayerTemplate] = field(default_factory=OrderedDict)
    """Of a tensor axis."""

    def answer(self, question: Question) -> Answer:
        """Solve a template.

        Raises:
            OutOfTimeError: there was no time to find any choice.
        """
        question.budget.check()
        name = question.template
        try:
            template = self.of(name, question.budget)
        except InfeasibleError:
            return Answer(TemplateCut(name, Weighing.of(np.zeros(SIZE), 0, 0), None, None), None, None)
        budget = question.budget.at_most(question.most_s).with_work(TENSOR_WORK if question.tensor_axis else WORK)
        found = solve_template(name, template, question.weights, budget, question.enough_ns)
        if isinstance(found, TemplateCut):
            return Answer(found, None, None)
        if question.tensor_axis:
            return Answer(found.cut, found.point, None)
        proposed, kept = self._proposed(question.config, template.space, found.signatures), None
        *_, last = ways_of(self.request, question.config)
        if question.proposes and last != question.config:
            space = self._space(last)
            # What computes again is laid out like what it computes: without it, all else is as it is.
            signatures = {op.name: found.signatures[op.name] for op in space.graph.ops}
            kept = self._proposed(last, space, signatures)
        return Answer(found.cut, found.point, proposed, kept)

    def _space(self, config: PlanConfig) -> SearchSpace:
        """Of the short model on one stage."""
        return space_of(replace(self.request, model=self.short), on_one_stage(config), free_rules(config))

    def _proposed(self, config: PlanConfig, space: SearchSpace, signatures: Mapping[str, Signature]) -> Proposed:
        """The layouts of a template, with what is to be known of them."""
        graph, cost = space.graph, self.request.cost
        placements = placements_of(config)
        stages = space.stages.placements if cost.cluster.groups else unlike_stages(cost.cluster, config)
        parts = slowest_parts([self._parts(space, signatures, stage) for stage in stages])
        messages = stage_messages(space, signatures, cost, placements)
        tied = tied_messages(space, signatures, cost, placements)
        counts = multiplicities(graph, self.request.model.layers)
        deep_ops = sum(counts.get(op.name, 1) for op in graph.ops)
        seam = seam_of(graph, space.stages, signatures)
        return Proposed(signatures, parts, messages, deep_ops, seam, bool(config.kept_layers), tied)

    def _parts(self, space: SearchSpace, signatures: Mapping[str, Signature], stage: Placement) -> ModelParts:
        """The parts as they are on the ranks of a stage."""
        graph, cost, stages = space.graph, self.request.cost, replace(space.stages, placements=(stage,))
        converter = space.converter if stages == space.stages else Converter(cost, (stage,))
        layout = lay_out(graph, stages, signatures, converter)
        return parts_of(graph, layout, arrange(graph, layout, space.pipeline), cost)

    def has(self, name: TemplateName) -> bool:
        """Whether the template of a name is built."""
        return name.key in (self.shared if name.tensor_axis else self.known)

    def of(self, name: TemplateName, budget: Budget) -> LayerTemplate:
        """The template of a name.

        Raises:
            OutOfTimeError: there was no time to build it.
            InfeasibleError: the pins leave an op without signature.
        """
        known, most = (self.shared, MOST_SHARED) if name.tensor_axis else (self.known, MOST_TEMPLATES)
        if name.key not in known:
            known[name.key] = LayerTemplate.named(name, self.request, self.short, budget)
            if len(known) > most:
                known.popitem(last=False)
        known.move_to_end(name.key)
        return known[name.key]
