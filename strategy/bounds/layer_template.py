"""Layer template: the layout problem of a short model on the mesh of one stage, its parts weighed as a deep model's.

    cost = sum over the coordinates of a point of  weight x what the choice of layouts takes or holds there

The choice that costs least is a layout of the deep model. Its least cost is a bound on the same sum under all choices
whose layers are alike, and, with the weights of a path through the schedule, on the step itself
(`outer_approximation`). A template is built once and solved under any weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strategy.base.budget import Budget
from strategy.bounds.at_work import NOTHING, count_at_head, count_at_work
from strategy.bounds.crossings import crossings_of
from strategy.bounds.one_mesh import on_one_stage, without_data_axis
from strategy.bounds.point import (
    ADDED,
    AHEAD,
    DEFERRED,
    FAR,
    HELD,
    MOVED,
    NEAR,
    PASSES,
    SAVED,
    SIZE,
    SUMS,
    TIED,
    WAITING,
    time_at,
    unit,
)
from strategy.bounds.template_cut import TemplateName
from strategy.bounds.tied import tied_values
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate, deciding_op
from strategy.graph.ops import op_definition
from strategy.graph.signature import SbpFilter, Signature
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.arrangement import Arrangement, arrange
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter, lay_out
from strategy.layout.gradient_exchange import exchanged
from strategy.layout.layout import Layout
from strategy.layout.objective import Account
from strategy.layout.parameter_gathers import of_parameters
from strategy.layout.step_times import COPIED, OVERLAPPED, WAITED
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.sbp.placement import Space
from strategy.sbp.sbp import Partial, Reduce, Sbp
from strategy.sbp.tensor import Rate
from strategy.space.axis_orders import placements_of
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.layout_problem import LinearLayoutProblem, linear_layout_problem
from strategy.space.request import Request
from strategy.space.rules import following_samples
from strategy.space.short_model import LAYERS, MIDDLE, places_of
from strategy.space.space import Handed, Keeping, Kept, SearchSpace, Weight

UNITS = tuple(unit(at) for at in range(SIZE))
"""Of what counts at one coordinate."""


@dataclass(frozen=True, slots=True)
class LayerTemplate:
    """The problem of a short model on one stage's mesh."""

    space: SearchSpace
    problem: LinearLayoutProblem

    @staticmethod
    def named(name: TemplateName, request: Request, short: Model, budget: Budget) -> LayerTemplate:
        """The template of a name.

        Raises:
            OutOfTimeError, InfeasibleError: as `of`.
        """
        make = LayerTemplate.of_tensor_axis if name.tensor_axis else LayerTemplate.of
        return make(request, short, name.config, budget)

    @staticmethod
    def of(request: Request, short: Model, config: PlanConfig, budget: Budget) -> LayerTemplate:
        """The template of a configuration.

        Raises:
            OutOfTimeError: the time ran out before it was built.
            InfeasibleError: the pins leave an op without signature.
        """
        between = None if config.pp == 1 else _Between.of(request.cost, config)
        return _template(request, short, on_one_stage(config), budget, between=between)

    @staticmethod
    def of_tensor_axis(request: Request, short: Model, config: PlanConfig, budget: Budget) -> LayerTemplate:
        """The same without data axis, where what follows samples along that counts alone: all data axes have it alike.

        Where links inside of nodes are not the faster ones, or an order of the axes is pinned, collectives take what
        they take on the fastest.

        Gradients are added up over micro-batches, two of them: what is exchanged once these are over does not count.

        Raises:
            OutOfTimeError, InfeasibleError: as `of`.
        """
        alone = without_data_axis(config)
        training = replace(request.training, global_batch=2 * config.micro_batch * config.ep)
        cost = request.cost.wherever_axes_lie(in_order=not request.pins.order)
        request = replace(request, training=training, cost=cost)
        counted = _following(request, short, alone)
        return _template(request, short, alone, budget, counted=counted)

    def arranged(self, signatures: Mapping[str, Signature]) -> tuple[Layout, Arrangement]:
        """The short model under signatures, on one stage."""
        layout = lay_out(self.space.graph, self.space.stages, signatures, self.space.converter)
        return layout, arrange(self.space.graph, layout, self.space.pipeline)


def _template(
    request: Request,
    short: Model,
    config: PlanConfig,
    budget: Budget,
    *,
    counted: frozenset[str] | None = None,
    between: _Between | None = None,
) -> LayerTemplate:
    """The template of a mesh on which some ops are `counted` alone, or all."""
    space = space_of(replace(request, model=short), config, free_rules(config))
    graph = space.graph
    everything, counted = counted is None, frozenset(graph.by_name) if counted is None else counted
    homes, kept = _held(graph, counted, everything=everything)
    if space.pipeline.overlaps and everything:
        kept = {**_beside(graph), **kept}
    space = replace(
        space,
        wanted=sums_alone(space.wanted),
        weigh=_weigher(graph, counted),
        home_weights=homes,
        kept=kept,
        handed={} if between is None else _handed(graph, between),
    )
    return LayerTemplate(space, linear_layout_problem(space, SIZE, budget=budget))


def _following(request: Request, short: Model, config: PlanConfig) -> frozenset[str]:
    """The ops that follow samples along a data axis: as a micro-batch of two ranks tells, with a sample for each."""
    two = replace(config, dp=2, ep=1, tp=1, micro_batch=1, strides=())
    training = replace(request.training, global_batch=2 * config.num_micro_batches)
    graph = planned_graph(short, replace(request, training=training).training_with(two), two)
    return frozenset(following_samples(graph, 2))


def sums_alone(wanted: Callable[[Op], SbpFilter] | None) -> Callable[[Op], SbpFilter]:
    """What is wanted, but for what reads terms of a maximum or a minimum: they are combined where they arise."""

    def of(op: Op) -> SbpFilter:
        before = None if wanted is None else wanted(op)

        def alone(axis: int, position: int, sbp: Sbp) -> bool:
            if position < len(op.inputs) and isinstance(sbp, Partial) and sbp.reduce is not Reduce.SUM:
                return False
            return before is None or before(axis, position, sbp)

        return alone

    return of


_PUT_OFF = {
    "backward_ns": "weight_ns",
    OVERLAPPED["backward_ns"]: OVERLAPPED["weight_ns"],
    WAITED["backward_ns"]: WAITED["weight_ns"],
    COPIED["backward_ns"]: COPIED["weight_ns"],
}
"""Where gradients of weights count that are a pass of their own."""


@dataclass(frozen=True, slots=True)
class _Weigher:
    """Says at which coordinate an act counts: by its pass, and the part that its op belongs to."""

    part_of: Mapping[str, int]
    counted: frozenset[str]
    apart: frozenset[str]
    """Gradients of weights: a pass of their own under some schedules."""

    def __call__(self, op: Op, account: Account) -> Weight:
        name, _ = account
        if op.name not in self.counted or name not in PASSES:
            return NOTHING
        if op.name in self.apart:
            name = _PUT_OFF.get(name, name)
        return UNITS[time_at(name, self.part_of[op.name])]


def _weigher(graph: Graph, counted: frozenset[str]) -> _Weigher:
    return _Weigher(places_of(graph), counted, weight_gradients(graph))


@dataclass(frozen=True, slots=True)
class _Between:
    """Converters between two stages: of pairs that hand on to each other, with where that counts; and of both ends."""

    pairs: tuple[tuple[slice, Converter], ...]
    ends: Converter

    @staticmethod
    def of(cost: CostModel, config: PlanConfig) -> _Between:
        """Between the stages of a configuration."""
        stages, far = placements_of(config), crossings_of(cost.cluster, config).far
        pairs = [(NEAR, (0, 1)), *([(FAR, far)] if far else [])]
        between = tuple((at, Converter(cost, (stages[here], stages[there]))) for at, (here, there) in pairs)
        return _Between(between, Converter(cost, (stages[0], stages[-1])))


def _handed(graph: Graph, between: _Between) -> Mapping[str, Handed]:
    """What stages hand on to each other.

    That is what the middle layer reads of the first one, handed on from stage to stage, and of the last one, handed
    back; and what both ends use once per step.
    """
    found = {
        name: Handed(tuple(op.name for op in ops), end, 1 - end, ((unit(TIED.start + end), between.ends),))
        for end in range(2)
        for name, ops in tied_values(graph, end)
    }
    for name, value in graph.values.items():
        producer = graph.producer.get(name)
        if producer is None or value.rate is not Rate.MICRO_BATCH or producer.layer not in (0, LAYERS - 1):
            continue
        readers = tuple(op.name for op in graph.consumers[name] if op.layer == MIDDLE)
        if readers:
            onward = producer.layer == 0
            ways = tuple((unit(at.start + (not onward)), converter) for at, converter in between.pairs)
            found[name] = Handed(readers, int(not onward), int(onward), ways)
    return found


def _beside(graph: Graph) -> Mapping[str, Kept]:
    """What is held of a layer between while another's backward pass runs, by what collectives give and take.

    Parameters are gathered a layer earlier, and what exchanges give is taken a layer later (`lowering.stage_order`). So
    at any time each of these is there of one layer or another.
    """
    parameters, gradients, part_of = of_parameters(graph), exchanged(graph), places_of(graph)
    found: dict[str, Kept] = {}
    for name, op in graph.producer.items():
        value = graph.values[name]
        if part_of[op.name] != MIDDLE or value.rate is not Rate.MICRO_BATCH or value.space is not Space.DEVICE:
            continue
        readers = tuple(one.name for one in graph.consumers[name] if one.phase is not Phase.FORWARD)
        if readers and name in parameters:
            found[name] = Kept(unit(MOVED.start), readers, keeping=Keeping.GATHERED)
        elif readers and name in gradients:
            found[name] = Kept(unit(MOVED.start), readers, keeping=Keeping.EXCHANGED)
    return found


def _deferred(graph: Graph, name: str, there: int, apart: frozenset[str], part_of: Mapping[str, int]) -> Kept | None:
    """What a backward pass leaves for gradients of weights: as backward passes read it, if they do, or as it lives.

    What these read as gradients of weights do is there for both. Else one of the two is converted from where the value
    lives, which is no smaller than the least that it could be. Of several gradients of weights that which reads most is
    looked at: a product's.
    """
    readers = [op for op in graph.consumers[name] if op.phase is not Phase.FORWARD and part_of[op.name] == there]
    waits = [op for op in readers if op.name in apart]
    passes = [op.name for op in readers if op.name not in apart]
    if not waits:
        return None
    reader = max(waits, key=lambda op: len(op.inputs)).name
    weight = unit((DEFERRED if _may_overwrite_saved(graph, name) else ADDED).start + there)
    if passes:
        return Kept(weight, (reader,), keeping=Keeping.BOTH, first=(passes[0],))
    return Kept(weight, (reader,), keeping=Keeping.SMALLER)


def _may_overwrite_saved(graph: Graph, name: str) -> bool:
    """Whether a value may lie where one of the forward pass did: written over it, or over what was."""
    op = graph.producer.get(name)
    if op is None or op.phase is Phase.FORWARD:
        return True
    return any(_may_overwrite_saved(graph, op.inputs[at]) for at in op_definition(op.kind).in_place)


def _held(
    graph: Graph, counted: frozenset[str], *, everything: bool
) -> tuple[Mapping[str, Weight], Mapping[str, Kept]]:
    """What bytes count: (value -> where it lives, value -> for whom it is kept).

    Only what is held for certain, until the last backward pass: variables and sums where they live; what is made once
    per step, in every layout in which backward passes read it, and, until the last forward pass, in those in which
    forward passes alone do; and what backward passes read of their micro-batch. Where a
    layer reads a value in both passes, its copies are made in the first one, so that every layout which the second one
    wants is kept; what is read in the backward pass alone is kept where it lives or, at the end of a stage, as it is
    wanted.

    Args:
        graph: of the short model.
        counted: the ops whose values count, and what they read.
        everything: whether all that is held for the step counts.
    """
    homes: dict[str, Weight] = {}
    kept: dict[str, Kept] = {}
    apart = weight_gradients(graph)
    part_of = places_of(graph)
    for name, value in graph.values.items():
        decider = deciding_op(graph, name)
        if decider is None or value.space is not Space.DEVICE:
            continue
        part, readers = part_of[decider.name], graph.consumers[name]
        if value.rate is Rate.MICRO_BATCH:
            if decider.name not in counted:
                continue
            later = [op for op in readers if op.phase is not Phase.FORWARD]
            if not later or any(op.name not in counted for op in later):
                continue
            there = part_of[later[0].name]
            if decider.phase is not Phase.FORWARD:
                found = None if decider.name in apart else _deferred(graph, name, there, apart, part_of)
                kept |= {} if found is None else {name: found}
                continue
            later = [op for op in later if part_of[op.name] == there]
            waits = [op.name for op in later if op.name in apart]
            passes = [op.name for op in later if op.name not in apart]
            saved, waiting = unit(SAVED.start + there), unit(WAITING.start + there)
            weight = saved if passes else waiting
            if any(op.phase is Phase.FORWARD and part_of[op.name] == there for op in readers):
                kept[name] = Kept(weight, tuple(passes or waits))
                if passes and waits:  # a layout that both want is there until the later of the two
                    kept[name] = Kept(waiting, tuple(waits), first_weight=saved, first=tuple(passes))
            elif part == there:
                homes[name] = weight
            else:
                kept[name] = Kept(weight, (later[0].name,), keeping=Keeping.SMALLER)
        elif value.role is Role.VARIABLE:
            homes |= {name: unit(HELD.start + part)} if everything else {}
        elif decider.phase is Phase.FORWARD:
            often = [op for op in readers if act_rate(graph, op) is Rate.MICRO_BATCH and op.phase is not Phase.UPDATE]
            often = [op for op in often if op.name in counted]
            places = [part_of[op.name] for op in often]
            if places:
                part = part if part in places else places[0]
                here = [op for op in often if part_of[op.name] == part]
                ahead = tuple(op.name for op in here if op.phase is Phase.FORWARD)
                behind = tuple(op.name for op in here if op.phase is not Phase.FORWARD)
                kept[name] = Kept(unit(HELD.start + part), behind, first_weight=unit(AHEAD.start + part), first=ahead)
        elif decider.phase is not Phase.UPDATE and everything:
            homes[name] = unit(SUMS.start + part)
    count_at_head(graph, counted, homes, kept)
    count_at_work(graph, counted, apart, homes, kept)
    return homes, kept
