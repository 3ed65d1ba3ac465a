"""Listed plans: every plan of a small model that a search chooses from, listed without any code of the search.

What is listed is stated in two places and written here again, as plain as can be:

    candidates      every way that the pins allow to cut all devices into data x tensor x pipeline and the batch into
                    micro-batches; 1F1B, interleaved, ZB-H1, ZBV and GPipe where there is a pipeline, no more stages
                    times laps than layers, interleaved with such laps that the fullest place has a twentieth more than
                    its share at most; every kind of recomputing that drops something; activations, or parameters with
                    their state, or both on the host, where there is one; every stage of ZeRO, and stage 3 in groups of
                    the ranks that share a node, where its links are faster; experts shared out among
                    as many neighbours of the data axis as divide both; where links inside of nodes are not faster in
                    every respect, every order of stages and axes over the ranks that puts others into one node
                    (`strategy.space.candidates`)
    signatures      of every op the legal ones (`op_signatures`) that the rules of the axes and the pins leave
                    (`strategy.space.rules`): along the tensor axis inputs are whole, all else is free; along
                    the data axis the inputs are split by sample, and in layers everything follows from that, op after
                    op (`sample_flow`) - but where layouts are pinned, all but the
                    inputs is free (`sample_axis`). What ZeRO demands is the passes' to say (`zero_filter`). Along the
                    axis of experts (`expert_flow`) what has the shape of all maps of a layer is split by expert; what
                    reads or writes rows, or the tokens of these, follows samples or experts; all else is as along the
                    data axis

Alike ops of repeated layers have one signature, and what computes an op again has that of the op. Sequences that are
split are left out: tiny models have none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from operator import mul

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op, Role
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.arrangement import Pipeline
from strategy.layout.config import SMALLEST_SHARED, Offload, PlanConfig, Recompute
from strategy.layout.layout import Stages, assign_stages
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.passes.planned import planned_graph
from strategy.passes.recompute import dropped_values
from strategy.passes.training import training_graph
from strategy.passes.zero_layouts import zero_filter
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, Split
from strategy.space.request import Request

Options = dict[str, tuple[Signature, ...]]
"""Op name -> the signatures that it may have."""


@dataclass(frozen=True)
class Listed:
    """One candidate: its graph on its stages, and what every op may be laid out like."""

    config: PlanConfig
    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    options: Options

    @cached_property
    def groups(self) -> tuple[tuple[Op, ...], ...]:
        """Ops that take one signature together."""
        graph, found = self.graph, dict[object, list[Op]]()
        for op in graph.ops:
            original = graph.by_name[op.repeats] if op.repeats else op
            specs = graph.specs((*op.inputs, *op.outputs, *op.updates))
            alike = op.kind, specs, tuple(sorted(op.attrs.items())), self.options[op.name]
            found.setdefault((original.template or original.name, *alike), []).append(op)
        return tuple(map(tuple, found.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """How many signatures every group chooses from."""
        return tuple(len(self.options[ops[0].name]) for ops in self.groups)

    @property
    def points(self) -> int:
        """How many combinations of signatures there are."""
        return math.prod(self.sizes)

    def picked(self, picks: tuple[int, ...]) -> dict[str, Signature]:
        """Op name -> signature, of one pick per group."""
        return {
            op.name: self.options[op.name][pick] for ops, pick in zip(self.groups, picks, strict=True) for op in ops
        }

    def pinned(self, pattern: str, layout: NdSbp) -> Listed:
        """What is left where the values that a pattern means are to be laid out like that."""
        on_mesh = tuple(B if parts == 1 else sbp for sbp, parts in zip(layout, self.config.mesh, strict=True))
        wanted = {name: on_mesh for name in self.graph.values if fnmatchcase(name, pattern)}
        left = dict(self.options)
        for op in self.graph.ops:
            if any(name in wanted for name in (*op.inputs, *op.outputs, *op.updates)):
                left[op.name] = tuple(one for one in left[op.name] if _as_pinned(op, one, wanted))
        return replace(self, options=left)


def candidates(request: Request) -> Iterator[PlanConfig]:
    """Every division of devices, batch and time that the pins allow, with every way to save memory."""
    pins, devices, batch = request.pins, request.devices, request.training.global_batch
    savings = _savings(request)
    for dp, tp, pp in itertools.product(range(1, devices + 1), repeat=3):
        if dp * tp * pp != devices:
            continue
        for micro in (micro for micro in range(1, batch + 1) if batch % (dp * micro) == 0):
            count = batch // (dp * micro)
            wanted = pins.dp, pins.tp, pins.pp, pins.micro_batch, pins.num_micro_batches
            values = dp, tp, pp, micro, count
            if not all(pin in (None, value) for pin, value in zip(wanted, values, strict=True)):
                continue
            saving = savings, _ways_of_zero(request, dp, tp), _shares_of_experts(request, dp)
            for (schedule, laps), (recompute, offload), (stage, group), ep in itertools.product(
                _schedules(request, pp, count), *saving
            ):
                if group % ep:
                    continue
                config = PlanConfig(
                    *(dp, tp, pp, micro, count, schedule),
                    virtual_stages=laps,
                    ep=ep,
                    recompute=recompute,
                    offload=offload,
                    zero_stage=stage,
                    zero_group=group,
                    zero_min_size=pins.zero_min_size or SMALLEST_SHARED,
                )
                yield from (replace(config, strides=strides) for strides in _strides(request, config))


def _schedules(request: Request, stages: int, count: int) -> Iterator[tuple[Schedule, int]]:
    """(schedule, laps); one stage alone has no schedule but a pinned one."""
    pins, layers = request.pins, max(request.model.layers, 1)
    several = [(Schedule.INTERLEAVED, laps) for laps in range(2, layers + 1)]
    if pins.schedule is Schedule.INTERLEAVED and pins.virtual_stages is None:
        found = several
    elif pins.schedule is not None:
        found = [(pins.schedule, pins.laps)]
    elif stages == 1:
        found = [(Schedule.ONE_F_ONE_B, 1)]
    else:
        found = [(schedule, 1) for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.GPIPE)]
        found += [(Schedule.ZBV, 2), *(one for one in several if _is_even(layers, stages * one[1]))]
    for schedule, laps in found:
        if stages * laps <= layers and schedule_problem(schedule, stages, laps, count) is None:
            yield schedule, laps


def _is_even(layers: int, places: int) -> bool:
    """Whether the fullest of so many places has a twentieth more than its share of the layers at most."""
    return 20 * math.ceil(layers / places) * places <= 21 * layers


def _strides(request: Request, config: PlanConfig) -> list[tuple[int, ...]]:
    """Of every order that puts other ranks into one node, none for stages outermost and the last axis innermost."""
    node, sizes = request.cost.cluster.devices_per_node, (config.pp, *config.mesh)
    if request.pins.order or not _is_slower_inside(request):
        return [()]
    found: dict[frozenset[frozenset[tuple[int, ...]]], tuple[int, ...]] = {}
    for order in itertools.permutations(range(len(sizes))):
        inside = {axis: order[at + 1 :] for at, axis in enumerate(order)}
        strides = tuple(math.prod(sizes[inner] for inner in inside[axis]) for axis in range(len(sizes)))
        sharing: dict[int, set[tuple[int, ...]]] = {}
        for at in itertools.product(*map(range, sizes)):
            sharing.setdefault(sum(map(mul, at, strides)) // node, set()).add(at)
        is_first = order == tuple(range(len(sizes)))
        found.setdefault(frozenset(map(frozenset, sharing.values())), () if is_first else strides)
    return list(found.values())


def _shares_of_experts(request: Request, dp: int) -> list[int]:
    if request.pins.ep is not None:
        return [request.pins.ep]
    experts = getattr(request.model, "experts", 0)
    return [1, *(ep for ep in range(2, dp + 1) if experts and dp % ep == 0 and experts % ep == 0)]


def _recomputes(request: Request) -> list[Recompute]:
    if request.pins.recompute is not None:
        return [request.pins.recompute]
    graph = training_graph(request.model, replace(request.training, num_micro_batches=1))
    return [kind for kind in Recompute if kind is Recompute.NONE or dropped_values(graph, kind)]


def _savings(request: Request) -> list[tuple[Recompute, Offload]]:
    """What is computed again, with what waits on the host: all that the passes find something for."""
    found = [(recompute, offload) for recompute in _recomputes(request) for offload in _offloads(request)]
    return [pair for pair in found if pair[1] is Offload.NONE or _finds_something(request, *pair)]


def _offloads(request: Request) -> list[Offload]:
    if request.pins.offload is not None or request.pins.layouts or request.cost.cluster.host is None:
        return [request.pins.offload or Offload.NONE]
    return list(Offload)


def _finds_something(request: Request, recompute: Recompute, offload: Offload) -> bool:
    training = replace(request.training, num_micro_batches=1)
    config = PlanConfig(1, 1, 1, 1, 1, Schedule.ONE_F_ONE_B, recompute=recompute, offload=offload)
    try:
        planned_graph(request.model, training, config)
    except InputError:
        return False
    return True


def _ways_of_zero(request: Request, dp: int, tp: int) -> list[tuple[int, int]]:
    """(stage, group). All stages: what the search finds with 0, which demands nothing, is no worse than 1 and 2."""
    pins, cluster = request.pins, request.cost.cluster
    group, stages = pins.zero_group, [0, 1, 2, 3] if dp > 1 else [0]
    found = [(stage, 0) for stage in stages] if group in (None, dp) else []
    in_groups = [1, 2, 3] if group else [3]
    if group is None and not (pins.order or pins.layouts or pins.zero_stage == 0) and not _is_slower_inside(request):
        group = cluster.devices_per_node // tp if cluster.devices_per_node % tp == 0 else None
    if group and 1 < group < dp and dp % group == 0:
        stages = in_groups if pins.zero_stage is None else [1, 2, 3]
        found += [(stage, group) for stage in stages]
    return [way for way in found if pins.zero_stage in (None, way[0])]


def _is_slower_inside(request: Request) -> bool:
    """Whether links inside of nodes are not faster in every respect."""
    here, there = request.cost.cluster.intra, request.cost.cluster.inter
    return here.bytes_per_s < there.bytes_per_s or here.latency_s > there.latency_s


def listed(request: Request, config: PlanConfig, *, follows: bool = True) -> Listed:
    """One candidate with all that its ops may be laid out like, which may be nothing.

    Unless it `follows`, along the data axis all but the inputs is free, as where layouts are pinned.
    """
    training = replace(request.training, num_micro_batches=config.num_micro_batches)
    graph = planned_graph(request.model, training, config)
    sizes, size = (config.pp, *config.mesh), config.dp * config.tp
    strides = config.strides or [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    ranks = [sum(map(mul, at, strides)) for at in itertools.product(*map(range, sizes))]
    each = [tuple(ranks[stage * size : (stage + 1) * size]) for stage in range(config.pp)]
    placements = tuple(Placement(devices, config.mesh, config.axes) for devices in each)
    stages = assign_stages(graph, placements, schedule=config.schedule, laps=config.virtual_stages)
    overlaps = request.cost.cluster.device.backend != "numpy"
    pipeline = Pipeline(config.num_micro_batches, config.schedule, overlaps, config.virtual_stages)
    follows = follows and not request.pins.layouts
    may = _allowed(graph, stages, config, follows=follows)
    options = {op.name: tuple(one for one in op_signatures(graph, op, config.mesh) if may(op, one)) for op in graph.ops}
    found = Listed(config, graph, stages, pipeline, request.cost, options)
    for pattern, layout in request.pins.layouts.items():
        found = found.pinned(pattern, layout)
    return found


def _as_pinned(op: Op, signature: Signature, wanted: Mapping[str, NdSbp]) -> bool:
    """Whether values are as wanted; a copy that is to be laid out anew may read them otherwise."""
    copies = op_definition(op.kind).rearranges and op.outputs[0] in wanted
    names = (*op.inputs, *op.outputs, *op.updates)
    return all(
        wanted.get(name, layout) == layout or (copies and name not in op.outputs)
        for name, layout in zip(names, signature.layouts, strict=True)
    )


def _allowed(graph: Graph, stages: Stages, config: PlanConfig, *, follows: bool) -> Callable[[Op, Signature], bool]:
    """Whether the rules of the axes leave a signature to an op; `follows`: along the data axis layers follow."""
    inputs = {value.name for value in graph.with_role(Role.INPUT)}
    at, group = int(config.zero_group > 0), config.zero_group or config.dp
    data, tensor, experts = group // config.ep, len(config.mesh) - 1, config.ep > 1
    in_layers = _followed(graph, data) if follows and data > 1 else {}
    between = _followed(graph, config.dp // group) if follows and at else {}
    demanded = zero_filter(graph, config, stages.stage_of)
    by_sample = _followed(graph, config.ep) if experts else {}
    by_expert = _followed(graph, config.ep, by_sample, by_expert=True) if experts else {}

    def on_their_axis(op: Op, signature: Signature) -> bool:
        names = (*op.inputs, *op.outputs, *op.updates)
        along = tuple(layout[at + 1] for layout in signature.layouts)
        maps = [_has_shape_of_maps(graph, name) for name in names]
        if any(is_map and sbp != Split(0) for is_map, sbp in zip(maps, along, strict=True)):
            return False
        if _has_rows(graph, op) and op.layer is not None:
            return along == by_expert[op.name] or (not any(maps) and along == by_sample[op.name])
        if not any(maps) and data > 1 and any(layout[at] != layout[at + 1] for layout in signature.layouts):
            return False
        return any(maps) or by_sample.get(op.name, along) == along

    def allowed(op: Op, signature: Signature) -> bool:
        read = [layout for name, layout in zip(op.inputs, signature.inputs, strict=True) if name in inputs]
        for axis in range(at + 2 if experts and not _has_rows(graph, op) else at + 1):
            if config.mesh[axis] > 1 and any(layout[axis] != Split(0) for layout in read):
                return False
        if config.tp > 1 and any(layout[tensor] != B for layout in read):
            return False
        groups, along_data = (tuple(layout[axis] for layout in signature.layouts) for axis in (0, at))
        follow = in_layers.get(op.name, along_data) == along_data and between.get(op.name, groups) == groups
        return follow and demanded(op, signature) and (not experts or on_their_axis(op, signature))

    return allowed


def _has_rows(graph: Graph, op: Op) -> bool:
    return any(graph.values[name].spec.ragged is not None for name in (*op.inputs, *op.outputs))


def _has_shape_of_maps(graph: Graph, name: str) -> bool:
    """Whether a value is as large as all maps of a layer with experts; nothing else has three dims, but rows."""
    shapes = {value.spec.shape for value in graph.with_role(Role.VARIABLE) if len(value.spec.shape) == 3}
    return graph.values[name].spec.shape in shapes


def _followed(
    graph: Graph, parts: int, others: Mapping[str, tuple[object, ...]] | None = None, *, by_expert: bool = False
) -> dict[str, tuple[object, ...]]:
    """Op of a layer -> its layouts along an axis of samples, where it has anything to split.

    Every op in turn takes the first of its signatures that finds most of what it reads as it wants it, given how that
    was written; inputs are split by sample, variables whole, and stay so. `by_expert`: what reads or writes all maps
    of a layer with experts wants them split by expert; and what has no rows is as for `others`.
    """
    held: dict[str, object] = {}
    for value in graph.values.values():
        if value.role is not Role.COMPUTED:
            held[value.name] = Split(0) if value.role is Role.INPUT else B
    found: dict[str, tuple[object, ...]] = {}
    for op in graph.ops:
        legal = [one for one in op_signatures(graph, op, (parts,)) if all(layout == (B,) for layout in one.updates)]
        if not legal:
            continue
        if others is not None and op.name in others and not _has_rows(graph, op):
            found[op.name] = others[op.name]
            held.update(zip(op.outputs, others[op.name][len(op.inputs) :], strict=False))
            continue
        if by_expert and op.layer is not None:
            maps = [_has_shape_of_maps(graph, name) for name in (*op.inputs, *op.outputs)]
            layouts = [(one, zip(maps, one.layouts, strict=False)) for one in legal]
            legal = [one for one, each in layouts if all(nd == (Split(0),) for is_map, nd in each if is_map)] or legal
        first = min(legal, key=partial(_mismatches, op, held))
        held.update((name, layout[0]) for name, layout in zip(op.outputs, first.outputs, strict=True))
        along = tuple(layout[0] for layout in first.layouts)
        if op.layer is not None and any(isinstance(sbp, Split) for sbp in along):
            found[op.name] = along
    return found


def _mismatches(op: Op, held: Mapping[str, object], signature: Signature) -> int:
    return sum(held[name] != layout[0] for name, layout in zip(op.inputs, signature.inputs, strict=True))
