"""Layer template: the layout problem of a short model on the mesh of one stage, counted as a deep model's.

One problem says of a mesh and a micro-batch what it takes to train the model there: the choice that costs least, a
bound on all choices whose layers are alike, and from the choice, part by part, the times of passes and the bytes held,
of which those of any cut into stages are made up (`parts`).

    cost = micro_weight * (all that a micro-batch costs) + step_weight * (all that a step costs), in nanoseconds

With the weights of a schedule's bound (`makespan_bound`), the least cost bounds the step from below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.graph.signature import Signature
from strategy.ilp.solve import solve
from strategy.layout.arrangement import Arrangement, arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.layout import Layout
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.sbp.tensor import Rate
from strategy.search.candidate.candidates import Request, free_rules, space_of
from strategy.search.layouts.layout_problem import LayoutProblem, layout_problem
from strategy.search.layouts.space import SearchSpace
from strategy.search.template.short_model import multiplicities


@dataclass(frozen=True, slots=True)
class LayerTemplate:
    """The problem of a short model on one stage's mesh, with its parts counted as often as they are in the deep one."""

    space: SearchSpace
    problem: LayoutProblem

    @staticmethod
    def of(
        request: Request, short: Model, config: PlanConfig, micro_weight: int, step_weight: int, budget: Budget
    ) -> LayerTemplate:
        """The template of a configuration.

        Raises:
            OutOfTimeError: the time ran out before it was built.
            InfeasibleError: the pins leave an op without signature.
        """
        alone = on_one_stage(config)
        space = replace(
            space_of(replace(request, model=short), alone, free_rules(alone)),
            rate_weights={Rate.MICRO_BATCH: micro_weight, Rate.STEP: step_weight},
        )
        space = replace(space, stands_for=multiplicities(space.graph, request.model.layers))
        return LayerTemplate(space, layout_problem(space, budget=budget))

    def solve(self, budget: Budget, cutoff: int | None = None) -> tuple[int, Mapping[str, Signature] | None]:
        """(bound on the cost, the signatures found); none where no choice is cheaper than the cutoff.

        Raises:
            OutOfTimeError: there was no time to find any.
        """
        solution = solve(self.problem.problem, budget=budget, cutoff=cutoff)
        if solution.choice is None and not solution.lower_bound:
            raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")
        chosen = None if solution.choice is None else self.problem.signatures(solution.choice)
        return solution.lower_bound, chosen

    def laid_out(self, signatures: Mapping[str, Signature]) -> tuple[Layout, Arrangement]:
        """The short model under signatures, on one stage."""
        layout = lay_out(self.space.graph, self.space.stages, signatures, self.space.converter)
        return layout, arrange(self.space.graph, layout, self.space.pipeline)


def on_one_stage(config: PlanConfig) -> PlanConfig:
    """The configuration with the same mesh and micro-batches, without a pipeline."""
    return replace(config, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B)
