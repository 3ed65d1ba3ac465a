"""Layer template: the layout problem of a short model on the mesh of one stage, its parts weighed as a deep model's.

    cost = sum over the parts of the model (first, middle, last) of
           weight of a pass x what it takes + weight of a byte x what it holds

The choice that costs least is a layout of the deep model. Its least cost is a bound on the same sum under all choices
whose layers are alike, and, with the weights of a path through the schedule, on the step itself
(`outer_approximation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.base.status import Status
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate, deciding_op
from strategy.graph.signature import Signature
from strategy.ilp.solve import solve
from strategy.layout.arrangement import Arrangement, arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.layout import Layout
from strategy.layout.objective import Account
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.sbp.placement import Space
from strategy.sbp.sbp import Partial, Reduce
from strategy.sbp.tensor import Rate
from strategy.search.candidate.candidates import Request, free_rules, space_of
from strategy.search.layouts.layout_problem import LayoutProblem, layout_problem
from strategy.search.layouts.rules import following_samples
from strategy.search.layouts.short_model import places_of
from strategy.search.layouts.space import Kept, SearchSpace, all_of

PASSES = ("forward_ns", "backward_ns", "weight_ns", "before_ns", "after_ns")
"""What has a weight: the passes of a micro-batch, and what is done once per step; fields of `PipelineTimes`."""
NOTHING = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Weights:
    """What counts how much in the cost of a template, in its first, its middle and its last part.

    Attributes:
        times: pass -> of a nanosecond.
        held: of a byte that is held for the whole step: parameters and their state.
        sums: of a byte of sums of gradients, held from the first backward pass on.
        saved: of a byte of a micro-batch that is held from its forward pass to its backward pass.
        copies: whether what conversions write counts too; a bound may not count it, for some of it may be passing.
        following: whether what follows samples along the data axis counts alone: the rest is free to be shared there.
    """

    times: Mapping[str, tuple[int, int, int]]
    held: tuple[float, float, float] = NOTHING
    sums: tuple[float, float, float] = NOTHING
    saved: tuple[float, float, float] = NOTHING
    copies: bool = False
    following: bool = False


@dataclass(frozen=True, slots=True)
class LayerTemplate:
    """The problem of a short model on one stage's mesh under weights."""

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
        space = space_of(replace(request, model=short), alone, free_rules(alone))
        keep = all_of({"space": space.keep, "terms": sums_alone})
        space = replace(space, keep=keep, weigh=_weigher(space.graph, weights), **_prices(space.graph, weights))
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


def sums_alone(op: Op, signature: Signature) -> bool:
    """Keep what reads no terms of a maximum or a minimum: they are combined where they arise."""
    reads = (sbp for layout in signature.inputs for sbp in layout)
    return not any(isinstance(sbp, Partial) and sbp.reduce is not Reduce.SUM for sbp in reads)


def on_one_stage(config: PlanConfig) -> PlanConfig:
    """The configuration with the same mesh and micro-batches, without a pipeline."""
    return replace(config, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B)


@dataclass(frozen=True, slots=True)
class _Weigher:
    """Weighs an act by the part that its op belongs to, and its pass."""

    weights: Weights
    part_of: Mapping[str, int]
    counted: frozenset[str]
    apart: frozenset[str]
    """Gradients of weights: a pass of their own under some schedules."""

    def __call__(self, op: Op, account: Account) -> int:
        name, _ = account
        if op.name not in self.counted:
            return 0
        if name == "backward_ns" and op.name in self.apart:
            name = "weight_ns"
        return self.weights.times[name][self.part_of[op.name]] if name in self.weights.times else 0


def _weigher(graph: Graph, weights: Weights) -> _Weigher:
    apart = frozenset(op.name for op in defer_weight_gradients(graph).ops if op.phase is Phase.WEIGHT)
    counted = following_samples(graph, 2) if weights.following else graph.by_name
    return _Weigher(weights, places_of(graph), frozenset(counted), apart)


def _prices(graph: Graph, weights: Weights) -> dict[str, Any]:
    """The fields of a search space that say what bytes count.

    A bound may count only what is held for certain: variables and sums where they live; what is made once per step, in
    the layouts in which micro-batches read it; what the backward pass reads, as that wants it or where it lives. What
    the update alone makes and reads is not there while micro-batches are.
    """
    home: dict[str, float] = {}
    kept: dict[str, Kept] = {}
    if not any((*weights.held, *weights.sums, *weights.saved)):
        return {}
    part_of = places_of(graph)
    for name, value in graph.values.items():
        decider = deciding_op(graph, name)
        if decider is None or value.space is not Space.DEVICE:
            continue
        part, readers = part_of[decider.name], graph.consumers[name]
        if value.role is Role.VARIABLE:
            home[name] = weights.held[part]
        elif value.rate is Rate.STEP and decider.phase is Phase.FORWARD:
            often = [op for op in readers if act_rate(graph, op) is Rate.MICRO_BATCH and op.phase is not Phase.UPDATE]
            if often:
                kept[name] = Kept(weights.held[part], often[0].name, as_read=True)
        elif value.rate is Rate.STEP:
            home |= {name: weights.sums[part]} if decider.phase is not Phase.UPDATE else {}
        elif decider.phase is Phase.FORWARD:
            later = [op for op in readers if op.phase is not Phase.FORWARD]
            if later:
                kept[name] = Kept(weights.saved[part], later[0].name, as_read=False)
    if weights.copies:
        home |= {name: one.price for name, one in kept.items()}
        return {"home_prices": home, "copy_prices": home}
    return {"home_prices": home, "kept_prices": {name: one for name, one in kept.items() if one.price}}
