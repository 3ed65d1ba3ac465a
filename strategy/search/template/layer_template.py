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
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.base.status import Status
from strategy.graph.graph import Graph, Phase, Role, deciding_op
from strategy.graph.signature import Signature
from strategy.ilp.solve import solve
from strategy.layout.arrangement import Arrangement, arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.layout import Layout
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.search.candidate.candidates import Request, free_rules, space_of
from strategy.search.layouts.layout_problem import LayoutProblem, layout_problem
from strategy.search.layouts.short_model import multiplicities
from strategy.search.layouts.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much in the cost of a template.

    Attributes:
        micro_batch, step: a nanosecond of a micro-batch, and of what is done once per step.
        byte: a byte that is held all the time.
        in_flight: micro-batches whose activations are held at once.
        copies: whether what conversions write counts too; a bound may not count it, for some of it may be passing.
    """

    micro_batch: int
    step: int
    byte: float = 0.0
    in_flight: int = 1
    copies: bool = False


def _held(graph: Graph, counts: Mapping[str, int], weights: Weights) -> dict[str, float]:
    """Value -> what a byte of it counts: of what is held all the time, or from the forward pass to the backward one."""
    found = {}
    for name, value in graph.values.items():
        decider = deciding_op(graph, name)
        if decider is None or value.space is not Space.DEVICE:
            continue
        price = weights.byte * counts.get(decider.name, 1)
        if value.role is Role.VARIABLE or value.rate is Rate.STEP:
            found[name] = price
        elif decider.phase is Phase.FORWARD and any(op.phase is not Phase.FORWARD for op in graph.consumers[name]):
            found[name] = price * weights.in_flight
    return found


@dataclass(frozen=True, slots=True)
class LayerTemplate:
    """The problem of a short model on one stage's mesh, with its parts counted as often as they are in the deep one."""

    space: SearchSpace
    problem: LayoutProblem

    @staticmethod
    def of(request: Request, short: Model, config: PlanConfig, weights: Weights, budget: Budget) -> LayerTemplate:
        """The template of a configuration.

        Raises:
            OutOfTimeError: the time ran out before it was built.
            InfeasibleError: the pins leave an op without signature.
        """
        alone = on_one_stage(config)
        space = replace(
            space_of(replace(request, model=short), alone, free_rules(alone)),
            rate_weights={Rate.MICRO_BATCH: weights.micro_batch, Rate.STEP: weights.step},
        )
        counts = multiplicities(space.graph, request.model.layers)
        space = replace(space, stands_for=counts)
        if weights.byte:
            prices = _held(space.graph, counts, weights)
            space = replace(space, home_prices=prices, copy_prices=prices if weights.copies else {})
        return LayerTemplate(space, layout_problem(space, budget=budget))

    def solve(self, budget: Budget) -> tuple[int, Mapping[str, Signature]]:
        """(bound on the cost, the signatures found).

        Raises:
            InfeasibleError: no choice is legal.
            OutOfTimeError: there was no time to find any.
        """
        solution = solve(self.problem.problem, budget=budget)
        if solution.status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        if solution.status is Status.INFEASIBLE:
            raise InfeasibleError("no conversions lead between the layouts that the pins leave", hint="relax a pin")
        if solution.choice is None:
            raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")
        return solution.lower_bound, self.problem.signatures(solution.choice)

    def arranged(self, signatures: Mapping[str, Signature]) -> tuple[Layout, Arrangement]:
        """The short model under signatures, on one stage."""
        layout = lay_out(self.space.graph, self.space.stages, signatures, self.space.converter)
        return layout, arrange(self.space.graph, layout, self.space.pipeline)


def on_one_stage(config: PlanConfig) -> PlanConfig:
    """The configuration with the same mesh and micro-batches, without a pipeline."""
    return replace(config, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B)
