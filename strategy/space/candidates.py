"""Candidates: what a search chooses from.

A candidate is one configuration: a way to cut the devices into stages x data x context x tensor and the batch into
micro-batches, a schedule with its virtual stages, what is computed again, the stage of ZeRO and the groups in which it
shares out, and how many neighbours of the data axis share out experts. Its search space holds layouts
(`candidate_space`). Sequences are split where the user pins a context-parallel degree, or where they are long.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from strategy.base.errors import InputError
from strategy.layout.config import SMALLEST_SHARED, Context, Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule, at_position, schedule_problem
from strategy.models import Model
from strategy.passes.recompute import dropped_values
from strategy.passes.training import Training, training_graph
from strategy.space.axis_orders import axis_orders, placements_of, strides_of
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.lighter_ends import lighter_runs
from strategy.space.offloads import check_host, least_held_nbytes, may_travel, updates_no_faster
from strategy.space.request import Request
from strategy.space.short_model import shortened
from strategy.space.space import SearchSpace
from strategy.space.stage_orders import runs_by_speed, stage_orders
from strategy.space.trainer_memory import fitting_groups
from strategy.space.trainer_space import TRAINER_SPACES

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZBV, Schedule.GPIPE)
"""Those that a search looks at; OneFlow's order is 1F1B's with more memory."""
UNEVEN = 0.05
"""By this part stages may have more layers to pass than if these were dealt out equally, for more laps."""
LONG = 2**16
"""Shorter sequences are not shared out: a tensor axis splits what they hold between products, too."""
LEAST_POSITIONS = 2**13
"""Shorter runs of positions than this are not worth what is exchanged for attention."""
BYTES_REPEATED = 4
"""Of a parameter and its gradient, in half precision."""
CROWDED = 0.5
"""Part of a device's memory that these crowd."""
FILLED = 0.375
"""Part of all memory from which on it is looked at what may wait on hosts: that of what must be there between steps."""


def candidates_of(request: Request) -> Iterator[PlanConfig]:
    """Every configuration that the pins allow."""
    return itertools.chain.from_iterable(listed(request))


def listed(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """Every configuration that the pins allow, those together that differ in schedule alone, what saves least first.

    For a trainer, those that its configurations can say and its devices are likely to hold (`trainer_memory`).

    A tensor axis shares out every layer, so that its ranks divide the heads of attention, as trainers ask; a context
    axis splits long sequences. Stage 0 of ZeRO leaves stages 1 and 2 to the choice of layouts, but for groups: in
    those of a node, which gather over its links alone, stage 3 is looked at where memory asks for it; others where they
    are pinned.

    Raises:
        InputError: owners are pinned, but no stage of ZeRO.
        InfeasibleError: no configuration is likely to fit as its trainer holds it.
    """
    return expressible(request) if request.pins.trainer is None else fitting_groups(request, list(expressible(request)))


def expressible(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """The same, whether or not a trainer is likely to hold it."""
    pins = request.pins
    if pins.zero_owner and not pins.zero_stage:
        raise InputError("nothing is shared out", where="pins: zero_owner", hint="pin zero_stage 1, 2 or 3 too")
    trainer = None if pins.trainer is None else TRAINER_SPACES[pins.trainer]
    heads, layers, whole = _heads(request), max(request.model.layers, 1), dict[object, bool]()
    forms: dict[object, tuple[Form, ...]] = {}
    orders, of_node = _orders(request), _of_node(request)
    offloads, with_hosts = (
        {kind: offloads_of(request, kind, hosted=hosted) for kind in _recomputes(request)}
        for hosted in (False, bool(pins.hosted))
    )
    pinned: dict[str, Any] = {
        "recompute_values": pins.recompute_values,
        "offload_values": pins.offload_values,
        "tiles": pins.tiles or 1,
        "tiled": pins.tiled,
        "zero_min_size": pins.zero_min_size or SMALLEST_SHARED,
    }
    degrees = (
        shared.in_order(strides)
        for one in degrees_of(request, context_degrees(request))
        for by_expert in (replace(one, ep=ep, **pinned) for ep in expert_degrees(request, one.dp, one.cp))
        for shared in _in_groups(request, by_expert, of_node)
        for strides in orders(shared)
    )
    for plain in degrees:
        if plain.pp > layers or (pins.tp is None and heads % plain.tp):
            continue
        if pins.devices_per_stage not in (None, request.devices // plain.pp):
            continue
        shape = plain.pp, plain.num_micro_batches
        if shape not in forms:
            forms[shape] = tuple(_forms(request, plain))
        for saving in itertools.product(_recomputes(request), _zero_stages(request, plain)):
            for offload in (with_hosts if plain.cut in pins.hosted else offloads)[saving[0]]:
                one = plain.saving(*saving, offload)
                one = replace(one, zero_owner=True) if pins.zero_owner else one
                schedules = tuple(_scheduled(one, forms[shape]))
                if trainer is not None:
                    schedules = tuple(config for config in schedules if trainer.says(request.model, config))
                key = plain.pp, one.recompute, offload
                if schedules and key not in whole:
                    whole[key] = _keeps_layers_whole(request, schedules[0])
                if schedules and whole[key]:
                    yield schedules


def divisions(request: Request) -> Iterator[tuple[PlanConfig, ...]]:
    """The configurations of every division of devices and batch together, what saves least first."""

    def division(group: Sequence[PlanConfig]) -> tuple[object, ...]:
        one = group[0]
        return one.dp, one.zero_group, one.ep, one.cp, one.tp, one.pp, one.micro_batch, one.strides

    for _, groups in itertools.groupby(listed(request), key=division):
        yield tuple(itertools.chain.from_iterable(groups))


def context_degrees(request: Request) -> tuple[int, ...]:
    """Among so many ranks positions are shared out: of `LONG` sequences, of which each has `LEAST_POSITIONS` at least.

    Pinned layouts speak of the axes that are pinned.
    """
    if request.pins.layouts:
        return (1,)
    sequence = int(getattr(request.model, "sequence", 0))
    most = sequence // LEAST_POSITIONS if sequence >= LONG else 1
    return tuple(cp for cp in divisors(request.devices) if cp == 1 or cp <= most)


def expert_degrees(request: Request, dp: int, cp: int) -> tuple[int, ...]:
    """Among so many ranks experts are shared out: all alike. Not where sequences are split, unless it is pinned."""
    pins, experts = request.pins, max(1, int(getattr(request.model, "experts", 1)))
    if pins.ep is not None:
        return (pins.ep,) * (dp % pins.ep == 0 and pins.ep <= experts)
    if cp > 1 or pins.zero_owner or pins.layouts or request.deduction is not None:
        return (1,)
    return divisors(math.gcd(dp, experts))


def _in_groups(request: Request, config: PlanConfig, of_node: Callable[[PlanConfig], int]) -> Iterator[PlanConfig]:
    """A division with all ways to group those that share out by ZeRO, all of them first; stage 1 stands for any."""
    pinned = request.pins.zero_group
    if pinned is None or pinned == config.dp:
        yield config
    group = of_node(config) if pinned is None else pinned
    if 1 < group < config.dp and config.dp % group == 0 and group % config.ep == 0 and not request.pins.zero_owner:
        yield replace(config, zero_stage=1, zero_group=group)


def _of_node(request: Request) -> Callable[[PlanConfig], int]:
    """Gives the data-parallel ranks of a node, where its links are the faster ones and axes lie in their order; or 0.

    Unless a stage is pinned, only where what stage 0 repeats on every rank crowds a device: else that is faster.
    """
    pins, cluster = request.pins, request.cost.cluster
    fixed = pins.order or pins.layouts or pins.zero_stage == 0 or request.deduction is not None
    if fixed or cluster.groups or not request.cost.is_faster_inside():
        return lambda _: 0

    def of_node(config: PlanConfig) -> int:
        repeated = BYTES_REPEATED * request.model.parameters / (config.tp * config.pp)
        if pins.zero_stage is None and repeated < CROWDED * cluster.device.memory_bytes:
            return 0
        group, left = divmod(cluster.devices_per_node, config.tp * config.cp)
        return 0 if left else group

    return of_node


def _orders(request: Request) -> Callable[[PlanConfig], tuple[tuple[int, ...], ...]]:
    """Gives the strides that the axes of a configuration may have: others than by name where that may be worth it."""
    pins, cost = request.pins, request.cost
    if pins.order:
        return lambda config: (strides_of(config, pins.order),)
    if pins.placements or pins.trainer or cost.cluster.groups or cost.is_faster_inside():
        return lambda _: ((),)
    return lambda config: axis_orders(cost.cluster, config)


def _heads(request: Request) -> int:
    """Of attention, among which a tensor axis shares out every layer; 0, which all degrees divide, of other layers."""
    return int(getattr(request.model, "heads", 0))


def _recomputes(request: Request) -> tuple[Recompute, ...]:
    """Where signatures are deduced, nothing is weighed against memory."""
    if request.pins.recompute is not None or request.deduction is not None:
        return (request.pins.recompute or Recompute.NONE,)
    found = (Recompute.NONE, *recomputable(request.model, replace(request.training, num_micro_batches=1)))
    trainer = request.pins.trainer
    return found if trainer is None else tuple(kind for kind in found if kind in TRAINER_SPACES[trainer].recomputes)


def _zero_stages(request: Request, config: PlanConfig) -> tuple[int, ...]:
    pinned, trainer = request.pins.zero_stage, request.pins.trainer
    if config.zero_group:
        several = (3,) if request.pins.zero_group is None else (1, 2, 3)
        listed = several if trainer is None else TRAINER_SPACES[trainer].zero_stages_of(config)
        return tuple(stage for stage in (listed if pinned is None else (pinned,)) if stage)
    if pinned is None and trainer is not None:
        return TRAINER_SPACES[trainer].zero_stages_of(config)
    if pinned is not None:
        return (pinned,) if config.dp > 1 or not pinned else ()
    if config.dp == 1 or request.deduction is not None:
        return (0,)
    # Stage 2 shares out gradients as they arise; where there are several micro-batches, layouts of stage 0 do, too.
    return (0, 3) if config.num_micro_batches > 1 or stand_in(request) else (0, 2, 3)


def _scheduled(config: PlanConfig, forms: Sequence[Form]) -> Iterator[PlanConfig]:
    """The configuration under every schedule that there is for it; without a pipeline they are all one."""
    for schedule, laps, runs in forms:
        is_plain = (schedule, laps, runs) == (config.schedule, config.virtual_stages, config.runs)
        yield config if is_plain else config.in_form(schedule, laps, runs)


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


def stand_in(request: Request) -> Model | None:
    """What stands for a model that is searched on three layers; None of others, whose candidates are solved one by one.

    Those are few devices and parameters, layers that are unlike, and what has pins of its own.
    """
    pins = request.pins
    names = (pins.layouts, pins.stages, pins.placements, pins.recompute_values, pins.offload_values)
    extras = pins.tiles or pins.zero_owner or not _is_bounded_on_hosts(request)
    is_small = request.is_small and not request.cost.cluster.groups
    if request.deduction is not None or any(names) or extras or is_small:
        return None
    return shortened(request.model)


def _is_bounded_on_hosts(request: Request) -> bool:
    """Whether what bounds boxes holds for what is pinned to hosts: where these update no faster than devices."""
    if request.pins.offload in (None, Offload.NONE):
        return True
    has_host = request.cost.cluster.host is not None
    return has_host and updates_no_faster(request.model, request.training, request.cost)


def offloads_of(request: Request, recompute: Recompute, *, hosted: bool = False) -> tuple[Offload, ...]:
    """What may wait on the host, least first, where there is one.

    Not where layouts are pinned: what saves memory may then take less time, and each candidate would have to be solved.
    Where candidates are many (`stand_in`), only if what a training holds at least fills much of its devices' memory,
    shared out evenly among all; or of cuts that are `hosted`.
    """
    pins, host = request.pins, request.cost.cluster.host
    check_host(request.cost.cluster, pins.offload or Offload.NONE)
    if pins.offload is not None or host is None or pins.layouts or pins.trainer is not None:
        return (pins.offload or Offload.NONE,)
    if request.deduction is not None or (stand_in(request) and not (hosted or _are_filled(request))):
        return (Offload.NONE,)
    training = replace(request.training, num_micro_batches=1)
    kinds = [Offload.NONE, *(Offload.ACTIVATIONS,) * may_travel(request.model, training, recompute)]
    if updates_no_faster(request.model, request.training, request.cost):
        kinds += [Offload.OPTIMIZER, *(Offload.ALL,) * (len(kinds) > 1)]
    return tuple(kinds)


def _are_filled(request: Request) -> bool:
    """Whether what a training holds at least fills much of its devices' memory."""
    if request.cost.cluster.groups:
        return False
    least = least_held_nbytes(request.model, replace(request.training, num_micro_batches=1, global_batch=1))
    return least > FILLED * request.devices * request.memory_limit_bytes


def saves_most(request: Request, config: PlanConfig) -> bool:
    """Whether nothing that saves memory is left to try."""
    recompute, zero = _recomputes(request)[-1], _zero_stages(request, config)[-1]
    most = recompute, zero, offloads_of(request, recompute)[-1]
    in_groups = config.zero_group and request.pins.zero_group is None
    return (config.recompute, config.zero_stage, config.offload) == most and not in_groups


def _keeps_layers_whole(request: Request, config: PlanConfig) -> bool:
    """Whether no pinned stage cuts a layer through what is computed again or waits, unless that is pinned too."""
    computes = config.recompute not in (Recompute.NONE, request.pins.recompute)
    waits = config.offload not in (Offload.NONE, request.pins.offload)
    if not (computes or waits) or not request.pins.numbered_stages:
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


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return (*small, *(number // d for d in reversed(small) if d * d != number))


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
