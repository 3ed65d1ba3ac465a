"""Mixed refinement: proposals for a cluster whose nodes are of several types.

As `refinement`, but simpler. A box of configurations is bounded by the least work on the fastest type, and by how much
of the layers each stage can take (`mixed_bound`); the one that promises most is asked for layouts, which the short
model has on one stage. These are priced on the stages of every type, in every order that is looked at
(`stage_orders`), and layers are dealt out as the schedule's recurrence asks (`uneven_runs`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

import numpy as np

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import MeshGroup
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.least_work import LeastWork
from strategy.bounds.mixed_bound import mixed_bounds_ns
from strategy.bounds.point import (
    AHEAD,
    HELD,
    NEAR,
    PASSES,
    PER_MICRO_BATCH,
    SAVED,
    SIZE,
    SUMS,
    TIMES,
    WAITING,
    FloatArray,
)
from strategy.bounds.template_cut import TemplateCut, TemplateName
from strategy.bounds.tied import NOT_TIED, TiedMessages
from strategy.comm.hierarchical import by_node
from strategy.graph.signature import Signature
from strategy.layout.arrangement import arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter, lay_out
from strategy.layout.schedule import at_position
from strategy.models import Model
from strategy.sbp.placement import Placement
from strategy.search.box import EXHAUSTED, Box
from strategy.search.prospects import Prospects
from strategy.search.search_result import Watch
from strategy.search.search_state import LayoutProposal
from strategy.search.template.parts import ModelParts, parts_of
from strategy.search.template.stages import messages_ns
from strategy.search.template.template_solve import solve_template
from strategy.search.template.tied_messages import tied_messages
from strategy.search.template.uneven_runs import UnevenPipeline
from strategy.space.axis_orders import placements_of
from strategy.space.request import Request
from strategy.space.short_model import multiplicities
from strategy.space.stage_orders import stage_orders

MOST_TRIES = 2
"""So often a box is asked for layouts: what takes least time, and, where that does not fit, what holds little, too."""
SCARCE = 0.1
"""What filling the memory counts then, as a part of the step."""


class MixedRefinement:
    """Asks boxes for proposals, that which promises most first, until nothing better can be left."""

    def __init__(
        self,
        request: Request,
        short: Model,
        work: LeastWork,
        groups: Sequence[MeshGroup],
        budget: Budget,
        watch: Watch | None,
    ) -> None:
        self.request, self.short, self.budget, self.watch = request, short, budget, watch
        self.prospects = Prospects(request, work, ClosedForms(request, work))
        self.known = self.prospects.known
        bounds = iter(mixed_bounds_ns(request, [config for group in groups for config in group.configs]))
        self.boxes = [
            Box(group.configs, [float(max(bound, next(bounds))) for bound in group.bounds_ns]) for group in groups
        ]
        self.turns = 0

    def __enter__(self) -> MixedRefinement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """There are no other processes to end."""

    @property
    def bound_ns(self) -> int:
        """No configuration takes less."""
        least = min(box.bound_ns for box in self.boxes)
        return int(least) if math.isfinite(least) else 0

    @property
    def certifying_s(self) -> float:
        """There is no certificate yet."""
        return 0.0

    def certificate(self, most_ns: int) -> tuple[None, int]:
        """There is none yet of a bound over several types; and the bound, or as much as is of interest."""
        return None, min(self.bound_ns, most_ns)

    def run(self, *, near: float = 0.0, is_enough: Callable[[], bool] | None = None) -> None:
        """Propose, until nothing is left or the time is over; or the best is as near to the bound as this multiple.

        Or until something says that it `is_enough`.
        """
        while not (near and math.isfinite(self.prospects.best_ns) and self.prospects.best_ns <= near * self.bound_ns):
            most_ns = (1 - self.request.gap) * self.prospects.best_ns
            left = [box for box in self.boxes if box.bound_ns < most_ns and not box.is_done]
            box = self.prospects.most_promising(left)
            is_over = self.budget.is_over() or (is_enough is not None and is_enough())
            self.known.complete = box is None or not is_over
            if box is None or is_over:
                return
            if self.watch is not None:
                best_ns = None if math.isinf(most_ns) else int(self.prospects.best_ns)
                self.watch(self.turns, len(self.boxes), box.config, self.bound_ns, best_ns)
            self.turns += 1
            self._propose(box)

    def go_on(self, budget: Budget, *, near: float = 0.0, is_enough: Callable[[], bool] | None = None) -> None:
        """The same with more time; where plans held more than was thought, boxes are asked for lighter proposals."""
        self.budget = budget
        if self.known.refused:
            fits = {_plain(one.found.config) for one in self.known.fitting(self.request)}
            for box in self.boxes:
                if box.is_proposed and box.tries < MOST_TRIES and fits.isdisjoint(box.configs):
                    box.is_proposed = False
        self.run(near=near, is_enough=is_enough)

    def balance(self) -> None:
        """Nothing is mixed where stages are unlike."""

    def meanwhile(self, work: Callable[[], None], budget: Budget, about_s: float) -> None:
        """Do something else; nothing is done beside it."""
        self.budget = budget
        work()

    def _propose(self, box: Box) -> None:
        """Ask for layouts, weighed as the time and the memory of the first stage, which holds most, and use them."""
        best_ns, config, box.level = self.prospects.best_ns, box.config, EXHAUSTED
        name = TemplateName(config, tensor_axis=False)
        try:
            template = LayerTemplate.named(name, self.request, self.short, self.budget)
            found = solve_template(name, template, self._weights(box), self.budget)
        except InfeasibleError:
            box.close()
            return
        except OutOfTimeError:
            box.is_proposed = True
            return
        if isinstance(found, TemplateCut):
            box.close(found)
            return
        priced = _PricedLayouts(self.request, template, found.signatures)
        fits = False
        for one, bound_ns in zip(box.configs, box.bounds_ns, strict=True):
            for order in stage_orders(self.request.cost.cluster, one.pp) if bound_ns < best_ns else ():
                proposal = priced.proposal(replace(one, stage_order=order), self.known.margin(one))
                if proposal is not None:
                    self.known.proposals.append(proposal)
                    fits |= self.known.fits(self.request, proposal)
        box.tries += 1
        box.is_proposed = fits or box.tries >= MOST_TRIES

    def _weights(self, box: Box) -> FloatArray:
        """(SIZE,): of times, as an average stage has them; of bytes, where proposals without did not fit."""
        config, found = box.config, np.zeros(SIZE)
        layers = np.array([1.0, self.request.model.layers - 2, 1.0]) / config.pp
        found[TIMES] = np.tile(layers, len(PASSES))
        found[NEAR] = config.pp > 1
        for each in PER_MICRO_BATCH:
            found[each] *= config.num_micro_batches
        byte = SCARCE * box.bound_ns / min(self.request.memory_limits(config))
        in_flight = min(config.pp, config.num_micro_batches)
        for part, often in ((HELD, 1), (AHEAD, 1), (SUMS, 1), (SAVED, in_flight), (WAITING, in_flight)):
            found[part] = byte * often * layers if box.tries else 0.0
        return found


def _plain(config: PlanConfig) -> PlanConfig:
    """A configuration as its box has it."""
    return replace(config, runs=(), stage_order=())


@dataclass
class _PricedLayouts:
    """Layouts of the short model, priced on stages that are unlike, each only once."""

    request: Request
    template: LayerTemplate
    signatures: Mapping[str, Signature]
    parts: dict[object, ModelParts] = field(default_factory=dict)
    messages: dict[object, tuple[int, int]] = field(default_factory=dict)
    tied: dict[object, TiedMessages] = field(default_factory=dict)

    def proposal(self, config: PlanConfig, margin: float) -> LayoutProposal | None:
        """A configuration with the layers dealt out; None where no cut is likely to fit."""
        request, placements = self.request, placements_of(config)
        places = config.pp * config.virtual_stages
        at = [placements[at_position(config.schedule, config.pp, place)[0]] for place in range(places)]
        between = [self._message(here, there) for here, there in itertools.pairwise(at)]
        ahead, back = np.array(between, np.int64).reshape(-1, 2).T
        pipeline = UnevenPipeline(
            config=config,
            layers=request.model.layers,
            parts=[self._parts(placement) for placement in placements],
            between_ns=(ahead, back),
            limits=[limit / margin for limit in request.memory_limits(config)],
            overlap=request.overlap_of(config),
            tied=self._tied(at[0], at[-1]),
        )
        found = pipeline.best()
        if found is None:
            return None
        counts = multiplicities(self.template.space.graph, request.model.layers)
        deep_ops = sum(counts.get(op.name, 1) for op in self.template.space.graph.ops)
        return LayoutProposal(found, self.signatures, deep_ops)

    def _parts(self, placement: Placement) -> ModelParts:
        """On the devices of a stage."""
        key = by_node(self.request.cost.cluster, placement)
        if key not in self.parts:
            space = self.template.space
            stages = replace(space.stages, placements=(placement,))
            converter = Converter(self.request.cost, stages.placements)
            layout = lay_out(space.graph, stages, self.signatures, converter)
            arrangement = arrange(space.graph, layout, space.pipeline)
            self.parts[key] = parts_of(space.graph, layout, arrangement, self.request.cost)
        return self.parts[key]

    def _tied(self, first: Placement, last: Placement) -> TiedMessages:
        """What the ends of the pipeline hand each other once per step."""
        if first == last:
            return NOT_TIED
        key = by_node(self.request.cost.cluster, first, last)
        if key not in self.tied:
            self.tied[key] = tied_messages(self.template.space, self.signatures, self.request.cost, (first, last))
        return self.tied[key]

    def _message(self, here: Placement, there: Placement) -> tuple[int, int]:
        """What is handed on from a stage to the next one, and back."""
        if here == there:
            return 0, 0
        key = by_node(self.request.cost.cluster, here, there)
        if key not in self.messages:
            between = Converter(self.request.cost, (here, there))
            self.messages[key] = messages_ns(self.template.space, self.signatures, between)
        return self.messages[key]
