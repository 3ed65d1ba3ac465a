"""Candidates: what a search chooses from.

A candidate is one configuration: a way to cut the devices into stages x data x context x tensor and the batch into
micro-batches, a schedule with its virtual stages, what is computed again, the stage of ZeRO, and how many neighbours of
the data axis share out experts. Its search space holds the signatures that the rules of its axes and the user's pins
leave for every op. Sequences are split where the user pins a context-parallel degree, or where they are long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from strategy.base.errors import InputError, report
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph
from strategy.layout.arrangement import Pipeline
from strategy.layout.config import SMALLEST_SHARED, Context, Offload, PlanConfig, Recompute
from strategy.layout.convert import Converter
from strategy.layout.layout import Stages, assign_stages
from strategy.layout.schedule import Schedule, at_position, schedule_problem
from strategy.models import Model
from strategy.passes.planned import planned_graph
from strategy.passes.recompute import dropped_values
from strategy.passes.training import Training, training_graph
from strategy.passes.zero_layouts import zero_filter
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp
from strategy.sbp.tensor import Shape
from strategy.space.axes_as_one import one_but_for_experts, one_for_parameters
from strategy.space.axis_orders import axis_orders, ranks_of, strides_of
from strategy.space.deduce import Deduction
from strategy.space.lighter_ends import lighter_runs
from strategy.space.pins import check_pins, pinned, placement_problems, stage_of_devices
from strategy.space.rules import AlongAxes, along_axes
from strategy.space.short_model import shortened
from strategy.space.space import Keep, SearchSpace, all_of
from strategy.space.stage_orders import runs_by_speed, stage_orders

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZBV, Schedule.GPIPE)
"""Those that a search looks at; OneFlow's order is 1F1B's with more memory."""
UNEVEN = 0.05
"""By this part stages may have more layers to pass than if these were dealt out equally, for more laps."""
LEAST_POSITIONS = 2**15
"""Shorter runs of positions than this are not worth what is exchanged for attention."""

FREE: Mapping[str, str] = {
    "data": "samples",
    "expert": "experts",
    "context": "positions split",
    "tensor": "heads split",
}
"""The rules of the axes in a search: those of samples follow these, the others are free but for positions."""

WITHOUT_ZERO = {"data": "samples split", "expert": "experts split", "context": "positions split"}
"""Rule of an axis -> what is left of it where ZeRO says how parameters lie along it."""


AS_PINNED = {"samples": "samples split", "experts": "experts split", "heads split": "samples shared"}
"""Rule -> what it leaves open where layouts are pinned."""


@dataclass(frozen=True, slots=True)
class Pins:
    """What a user fixes: any of the degrees, the layout of any value, the stage of any op (both by name or pattern).

    Where micro-batches pass the stages on several laps, `stages` are virtual stages.
    """

    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    order: tuple[str, ...] = ()
    context: Context | None = None
    pp: int | None = None
    micro_batch: int | None = None
    num_micro_batches: int | None = None
    schedule: Schedule | None = None
    recompute: Recompute | None = None
    recompute_values: tuple[str, ...] = ()
    offload: Offload | None = None
    offload_values: tuple[str, ...] = ()
    zero_stage: int | None = None
    zero_owner: bool = False
    zero_min_size: int | None = None
    tiles: int | None = None
    tiled: tuple[str, ...] = ("*",)
    virtual_stages: int | None = None
    layouts: Mapping[str, NdSbp] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    placements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Pattern of op names -> the devices of its stage, instead of the stage's number."""

    def __post_init__(self) -> None:
        report([*placement_problems(self.placements), *self._schedule_problems()], where="pins")

    def _schedule_problems(self) -> Iterator[InputError]:
        """What no degrees can make good; micro-batches in groups only where both numbers are pinned."""
        schedule, laps = self.schedule or Schedule.ONE_F_ONE_B, self.laps
        stages, count = (self.pp, self.num_micro_batches) if self.pp and self.num_micro_batches else (1, 1)
        problem = schedule_problem(schedule, stages, laps, count)
        if problem is not None:
            yield InputError("no such schedule", where="[config]", got=problem)
        if self.placements and laps > 1:
            hint = "pin virtual stages by their numbers, under [stage]"
            yield InputError("devices do not tell virtual stages apart", where="[placement]", hint=hint)

    @property
    def laps(self) -> int:
        """Virtual stages per device."""
        if self.virtual_stages is not None:
            return self.virtual_stages
        return 1 if self.schedule is None else self.schedule.default_laps

    @property
    def devices_per_stage(self) -> int | None:
        """As many as a stage has that is pinned by its devices."""
        return next((len(devices) for devices in self.placements.values()), None)

    @property
    def numbered_stages(self) -> dict[str, int]:
        """Pattern of op names -> stage, of those pinned by their devices too."""
        return {**self.stages, **{p: stage_of_devices(devices) for p, devices in self.placements.items()}}


FEW_DEVICES, MANY_PARAMETERS = 16, 10**9
"""Below so many devices, and parameters, candidates are few enough to be solved one by one, exactly."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `training.num_micro_batches` is the search's to choose."""

    model_name: str
    model: Model
    training: Training
    cost: CostModel
    memory_limit_bytes: int
    pins: Pins = Pins()
    deduction: Deduction | None = None
    """Deduce signatures by this rule instead of searching for the best ones."""
    gap: float = 0.01
    """Part of the objective that it is not worth refining boxes of configurations for."""
    incumbents: bool = True
    """Whether plans that are laid out by rules stand beside those that are searched for."""

    @property
    def devices(self) -> int:
        """All devices of the cluster are used."""
        return self.cost.cluster.devices

    @property
    def is_small(self) -> bool:
        """Whether a candidate is soon solved on the whole model."""
        return self.devices < FEW_DEVICES and self.model.parameters < MANY_PARAMETERS

    def memory_limits(self, config: PlanConfig) -> tuple[int, ...]:
        """What a rank of each stage of a candidate may hold."""
        cluster, limit = self.cost.cluster, self.memory_limit_bytes
        if not cluster.groups:
            return (limit,) * config.pp
        return tuple(cluster.memory_limit_bytes(limit, placement.devices) for placement in placements_of(config))

    def training_with(self, config: PlanConfig) -> Training:
        """The training with the micro-batches of a candidate."""
        return replace(self.training, num_micro_batches=config.num_micro_batches)

    def pipeline_of(self, config: PlanConfig) -> Pipeline:
        """The pipeline of a candidate."""
        overlaps = self.cost.cluster.overlaps
        return Pipeline(config.num_micro_batches, config.schedule, overlaps, config.virtual_stages)


def candidates_of(request: Request) -> Iterator[PlanConfig]:
    """Every configuration that the pins allow."""
    return itertools.chain.from_iterable(listed(request))


def listed(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """Every configuration that the pins allow, those together that differ in schedule alone, what saves least first.

    A tensor axis shares out every layer, so that its ranks divide the heads of attention, as trainers ask; a context
    axis splits long sequences. Stage 0 of ZeRO leaves stages 1 and 2 to the choice of layouts.

    Raises:
        InputError: owners are pinned, but no stage of ZeRO.
    """
    pins = request.pins
    if pins.zero_owner and not pins.zero_stage:
        raise InputError("nothing is shared out", where="pins: zero_owner", hint="pin zero_stage 1, 2 or 3 too")
    heads, layers, whole = _heads(request), max(request.model.layers, 1), dict[object, bool]()
    forms: dict[object, tuple[Form, ...]] = {}
    degrees = (
        replace(shared, strides=strides)
        for one in degrees_of(request, context_degrees(request))
        for shared in (replace(one, ep=ep) for ep in expert_degrees(request, one.dp, one.cp))
        for strides in _orders(request, shared)
    )
    for plain in degrees:
        if plain.pp > layers or (pins.tp is None and heads % plain.tp):
            continue
        if pins.devices_per_stage not in (None, request.devices // plain.pp):
            continue
        shape = plain.pp, plain.num_micro_batches
        if shape not in forms:
            forms[shape] = tuple(_forms(request, plain))
        for recompute, zero in itertools.product(_recomputes(request), _zero_stages(request, plain)):
            one = replace(plain, recompute=recompute, zero_stage=zero)
            schedules = tuple(_scheduled(request, one, forms[shape]))
            if schedules and (plain.pp, recompute) not in whole:
                whole[plain.pp, recompute] = _keeps_layers_whole(request, schedules[0])
            if schedules and whole[plain.pp, recompute]:
                yield schedules


def divisions(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """The configurations of every division of devices and batch together, what saves least first."""

    def division(group: Sequence[PlanConfig]) -> tuple[object, ...]:
        one = group[0]
        return one.dp, one.ep, one.cp, one.tp, one.pp, one.micro_batch, one.strides

    for _, groups in itertools.groupby(listed(request), key=division):
        yield tuple(itertools.chain.from_iterable(groups))


def context_degrees(request: Request) -> tuple[int, ...]:
    """Among so many ranks positions are shared out: each has `LEAST_POSITIONS` at least.

    Pinned layouts speak of the axes that are pinned.
    """
    if request.pins.layouts:
        return (1,)
    most = int(getattr(request.model, "sequence", 0)) // LEAST_POSITIONS
    return tuple(cp for cp in divisors(request.devices) if cp == 1 or cp <= most)


def expert_degrees(request: Request, dp: int, cp: int) -> tuple[int, ...]:
    """Among so many ranks experts are shared out: all alike. Not where sequences are split, unless it is pinned."""
    pins, experts = request.pins, max(1, int(getattr(request.model, "experts", 1)))
    if pins.ep is not None:
        return (pins.ep,) * (dp % pins.ep == 0 and pins.ep <= experts)
    if cp > 1 or pins.zero_owner or pins.layouts or request.deduction is not None:
        return (1,)
    return divisors(math.gcd(dp, experts))


def _orders(request: Request, config: PlanConfig) -> tuple[tuple[int, ...], ...]:
    """The strides that the axes of a candidate may have."""
    pins = request.pins
    if pins.order:
        return (strides_of(config, pins.order),)
    return ((),) if pins.placements else axis_orders(request.cost.cluster, config)


def _heads(request: Request) -> int:
    """Of attention, among which a tensor axis shares out every layer; 0, which all degrees divide, of other layers."""
    return int(getattr(request.model, "heads", 0))


def _recomputes(request: Request) -> tuple[Recompute, ...]:
    """Where signatures are deduced, nothing is weighed against memory."""
    if request.pins.recompute is not None or request.deduction is not None:
        return (request.pins.recompute or Recompute.NONE,)
    return (Recompute.NONE, *recomputable(request.model, replace(request.training, num_micro_batches=1)))


def _zero_stages(request: Request, config: PlanConfig) -> tuple[int, ...]:
    pinned = request.pins.zero_stage
    if pinned is not None:
        return (pinned,) if config.dp > 1 or not pinned else ()
    return (0, 3) if config.dp > 1 and request.deduction is None else (0,)


def _scheduled(request: Request, config: PlanConfig, forms: Sequence[Form]) -> Iterator[PlanConfig]:
    """The configuration under every schedule that there is for it; without a pipeline they are all one."""
    pins = request.pins
    config = replace(
        config,
        recompute_values=pins.recompute_values,
        offload=pins.offload or Offload.NONE,
        offload_values=pins.offload_values,
        tiles=pins.tiles or 1,
        tiled=pins.tiled,
        zero_owner=pins.zero_owner,
        zero_min_size=pins.zero_min_size or SMALLEST_SHARED,
    )
    for schedule, laps, runs in forms:
        is_plain = (schedule, laps, runs) == (config.schedule, config.virtual_stages, config.runs)
        yield config if is_plain else replace(config, schedule=schedule, virtual_stages=laps, runs=runs)


Form = tuple[Schedule, int, tuple[int, ...]]
"""A schedule, its laps, and how layers are dealt out where that is not nearly equally."""


def _forms(request: Request, config: PlanConfig) -> Iterator[Form]:
    """What passes the stages of a configuration may be in; its degrees and micro-batches alone decide."""
    pins, layers, stages = request.pins, max(request.model.layers, 1), config.pp
    last = max(pins.numbered_stages.values(), default=0)
    if stages == 1 and pins.schedule is None:
        if not last:
            yield config.schedule, config.virtual_stages, config.runs
        return
    for schedule in SCHEDULES if pins.schedule is None else (pins.schedule,):
        for laps in _laps(request, schedule, stages):
            problem = schedule_problem(schedule, stages, laps, config.num_micro_batches)
            if problem is None and last < stages * laps <= layers:
                yield schedule, laps, ()
                dealt = replace(config, schedule=schedule, virtual_stages=laps)
                yield from ((schedule, laps, runs) for runs in _runs(request, dealt))


def _runs(request: Request, config: PlanConfig) -> tuple[tuple[int, ...], ...]:
    """How layers may be dealt out but nearly equally, where that is looked at."""
    if config.pp == 1 or request.is_small or request.pins.numbered_stages or request.cost.cluster.groups:
        return ()
    return lighter_runs(request.model, replace(request.training, num_micro_batches=1), config)


def _laps(request: Request, schedule: Schedule, stages: int) -> Iterator[int]:
    """How often a micro-batch may pass all stages: where these get equally many layers, or nearly.

    Never on several laps where ops are pinned to stages, and no schedule is: these would be others.
    """
    layers, pins = request.model.layers, request.pins
    if pins.virtual_stages is not None:
        yield pins.virtual_stages
    elif pins.numbered_stages and pins.schedule is None and schedule.default_laps > 1:
        return
    elif schedule is not Schedule.INTERLEAVED:
        yield schedule.default_laps
    else:
        for laps in range(2, layers // stages + 1):
            fullest = -(-layers // (stages * laps)) * stages * laps
            if pins.schedule is not None or fullest <= (1 + UNEVEN) * layers:
                yield laps


def on_types(request: Request, config: PlanConfig) -> Iterator[PlanConfig]:
    """A candidate in every order of its stages; where their types differ, layers are dealt out by their speed."""
    cluster, layers = request.cost.cluster, max(request.model.layers, 1)
    if not cluster.groups or config.pp == 1:
        yield config
        return
    places, dtype = config.pp * config.virtual_stages, request.training.product_dtype
    for order in stage_orders(cluster, config.pp):
        placements = placements_of(replace(config, stage_order=order))
        speeds = [cluster.around(one.devices[0]).device.product_flop_per_s(dtype) for one in placements]
        of_places = [speeds[at_position(config.schedule, config.pp, place)[0]] for place in range(places)]
        runs = () if request.pins.numbered_stages else runs_by_speed(layers, of_places)
        yield replace(config, stage_order=order, runs=runs)


def degrees_of(request: Request, contexts: Sequence[int] = (1,)) -> Iterator[PlanConfig]:
    """Every division of devices and batch that the pins allow; schedule and what saves memory are still open.

    Args:
        request: what is searched for.
        contexts: the context-parallel degrees where none is pinned.
    """
    pins, devices, batch = request.pins, request.devices, request.training.global_batch
    contexts = contexts if pins.cp is None else (pins.cp,)
    for pp, cp in itertools.product(divisors(devices), contexts):
        if pins.pp not in (None, pp) or devices // pp % cp or not _are_of_one_type(request, pp):
            continue
        for tp in (tp for tp in divisors(devices // pp // cp) if pins.tp in (None, tp)):
            dp = devices // pp // cp // tp
            if pins.dp not in (None, dp) or batch % dp:
                continue
            for micro in divisors(batch // dp):
                count = batch // dp // micro
                if pins.micro_batch in (None, micro) and pins.num_micro_batches in (None, count):
                    plain = PlanConfig(dp, tp, pp, micro, count, Schedule.ONE_F_ONE_B, cp=cp)
                    yield from (replace(plain, context=way) for way in _ways_of_attention(request, plain))


def _ways_of_attention(request: Request, config: PlanConfig) -> tuple[Context, ...]:
    """How attention may work where positions are split: heads can take their place where there are enough."""
    if request.pins.context is not None or config.cp == 1:
        return (request.pins.context or Context.RING,)
    heads = _heads(request)
    return tuple(Context) if heads and heads % (config.cp * config.tp) == 0 else (Context.RING,)


def _are_of_one_type(request: Request, pp: int) -> bool:
    """Whether the nodes of every stage are of one type; of a single stage, which has all of them, they need not be."""
    cluster = request.cost.cluster
    return pp == 1 or all(one.nodes * cluster.devices_per_node % (request.devices // pp) == 0 for one in cluster.groups)


def free_rules(config: PlanConfig) -> tuple[str, ...]:
    """The rules of a candidate's axes in a search."""
    return tuple(FREE[axis] for axis in config.axes)


def with_offload(request: Request, config: PlanConfig) -> Iterator[PlanConfig]:
    """A candidate with some of its memory on the host, where there is one.

    Activations travel where all of them are kept; the optimiser goes where all else has been done that saves memory.
    """
    if request.pins.offload is not None or config.offload is not Offload.NONE or request.cost.cluster.host is None:
        return
    if config.recompute is Recompute.NONE and config.zero_stage == (request.pins.zero_stage or 0):
        yield replace(config, offload=Offload.ACTIVATIONS)
    if saves_most(request, config):
        yield from (replace(config, offload=what) for what in (Offload.OPTIMIZER, Offload.ALL))


def saves_most(request: Request, config: PlanConfig) -> bool:
    """Whether nothing that saves memory on the device itself is left to try."""
    return (config.recompute, config.zero_stage) == (_recomputes(request)[-1], _zero_stages(request, config)[-1])


def _keeps_layers_whole(request: Request, config: PlanConfig) -> bool:
    """Whether no pinned stage cuts a layer through what is computed again, unless that is pinned too."""
    if config.recompute in (Recompute.NONE, request.pins.recompute) or not request.pins.numbered_stages:
        return True
    try:
        space_of(request, config, free_rules(config))
    except InputError:
        return False
    return True


CHEAPEST_FIRST = (Recompute.MEMORY_BOUND, Recompute.SELECTIVE, Recompute.FULL)


@lru_cache(maxsize=8)
def recomputable(model: Model, training: Training) -> tuple[Recompute, ...]:
    """The kinds of recomputing that find something to drop in a model as it is trained, cheapest first."""
    graph = training_graph(shortened(model) or model, training)
    return tuple(kind for kind in CHEAPEST_FIRST if dropped_values(graph, kind))


def state_bytes(request: Request) -> int:
    """About what parameters, gradients and both moments take on one device, in single precision."""
    return 16 * request.model.parameters


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return (*small, *(number // d for d in reversed(small) if d * d != number))


def space_of(request: Request, config: PlanConfig, rules: Sequence[str], *, folded: bool = True) -> SearchSpace:
    """The layouts of one candidate under one rule per axis; every stage's time counts once.

    Unless `folded`, repeated layers may be laid out each in its own way.

    Raises:
        InputError: with every illegal pin, or pinned stages that make a pass go against the pipeline, or what is to be
            offloaded has nowhere to go.
        InfeasibleError: the mesh does not allow the pinned layouts; names every op.
    """
    if config.offload is not Offload.NONE and request.cost.cluster.host is None:
        hint = "write a [host] section into its file: memory, memory_bandwidth, compute, bandwidth, latency"
        where = f"cluster {request.cost.cluster.name}"
        raise InputError("there is no host to offload to", where=where, got=str(config.offload), hint=hint)
    graph = planned_graph(request.model, request.training_with(config), config)
    placements, mesh, pins = placements_of(config), config.mesh, request.pins
    check_pins(graph, layouts=pins.layouts, stages=pins.stages, placements=pins.placements, axes=len(mesh))
    stages = assign_stages(
        graph,
        placements,
        pins=pins.numbered_stages,
        schedule=config.schedule,
        laps=config.virtual_stages,
        runs=config.runs,
    )
    return SearchSpace(
        graph=graph,
        stages=stages,
        pipeline=request.pipeline_of(config),
        cost=request.cost,
        converter=Converter(request.cost, placements),
        keep=_keep(graph, stages, config, pins),
        wanted=_rules(graph, config, rules, pins).wanted,
        owned=config.zero_owner,
        folded=folded,
        rule_based=None if tuple(rules) == config.axes else along_axes(graph, mesh, _but_for_zero(config, config.axes)),
    )


def placements_of(config: PlanConfig) -> tuple[Placement, ...]:
    """One mesh per stage, in pipeline order."""
    size, shares = math.prod(config.mesh), config.stage_order or range(config.pp)
    if config.strides:
        return tuple(Placement(tuple(each.ravel().tolist()), config.mesh, config.axes) for each in ranks_of(config))
    return tuple(Placement(tuple(range(s * size, (s + 1) * size)), config.mesh, config.axes) for s in shares)


def _rules(graph: Graph, config: PlanConfig, rules: Sequence[str], pins: Pins) -> AlongAxes:
    """The rules of the axes; where ZeRO says how parameters lie along the data axis, they do not."""
    if pins.layouts:  # they may ask for what no samples would lead to
        rules = [AS_PINNED.get(rule, rule) for rule in rules]
    return along_axes(graph, config.mesh, _but_for_zero(config, rules))


def _keep(graph: Graph, stages: Stages, config: PlanConfig, pins: Pins) -> Keep:
    """What ZeRO and pins leave."""
    mesh = stages.placements[0].mesh
    kept = {"zero": zero_filter(graph, config, stages.stage_of)} if config.zero_stage else {}
    if config.ep > 1 and mesh[0] > 1 and not pins.layouts:
        kept["experts"] = one_but_for_experts(graph)
    if config.cp > 1 and mesh[0] > 1 and not (pins.layouts or config.zero_owner):
        kept["context"] = one_for_parameters(graph, config.axes.index("context"))
    if pins.layouts:
        layouts = {name: _on_mesh(nd, mesh) for name, nd in pins.layouts.items()}
        kept["pins"] = pinned(graph, layouts, mesh, owned=config.zero_owner)
    return all_of(kept)


def _but_for_zero(config: PlanConfig, rules: Sequence[str]) -> Sequence[str]:
    """Rules without what ZeRO decides, where there is any."""
    return [WITHOUT_ZERO.get(rule, rule) for rule in rules] if config.zero_stage else rules


def _on_mesh(nd_sbp: NdSbp, mesh: Shape) -> NdSbp:
    """The layout as signatures write it: along an axis of one rank there is nothing to lay out."""
    return tuple(B if parts == 1 else sbp for sbp, parts in zip(nd_sbp, mesh, strict=True))


def space_log10(request: Request) -> float:
    """Decimal logarithm of the number of plans that a search chooses from: candidates times signatures of ops.

    Repeated layers are alike and count once. What saves memory and the schedule leave the choice of signatures as it
    is, and are counted by the first of each.
    """
    found = []
    for first, *others in divisions(request):
        found.append(_signatures_log10(space_of(request, first, free_rules(first))) + math.log10(1 + len(others)))
    largest = max(found, default=0.0)
    return largest + math.log10(sum(10 ** (size - largest) for size in found)) if found else 0.0


def _signatures_log10(space: SearchSpace) -> float:
    options = {space.graph.template_of(op): len(space.options(op)) for op in reversed(space.graph.ops)}
    return sum(math.log10(count) for count in options.values() if count)
