"""ModelParts: what the parts of a model take and hold; a stage is made up of them.

Read off a short model under chosen signatures. The *first* part is its first layer with all that stands ahead of the
layers, the *middle* one is any layer between, the *last* one is its last layer with all that follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from strategy.cost.cost import CostModel
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.arrangement import Action, Arrangement, Held, owner_of
from strategy.layout.covered import covered_acts
from strategy.layout.gradient_exchange import BACKWARD
from strategy.layout.layout import Layout
from strategy.layout.objective import acts_ns, all_features
from strategy.layout.overlapped import is_overlapped
from strategy.layout.parameter_gathers import of_parameters
from strategy.layout.step_times import COPIED, COVERED, OVERLAPPED, WAITED
from strategy.lowering.lifetime_peak import held_nbytes
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.space.short_model import LAYERS, places_of

UNTIL = {Phase.FORWARD: "ahead_bytes", Phase.BACKWARD: "behind_bytes", Phase.WEIGHT: "behind_bytes"}
"""The pass that last uses what is made once per step -> where its bytes count; else they are there for the update."""


@dataclass(frozen=True, slots=True)
class LayerPart:
    """Nanoseconds and bytes of a part of a model on a stage's busiest rank.

    Attributes:
        forward_ns, backward_ns, weight_ns: of a micro-batch; gradients of weights are apart from the backward pass.
        before_ns, after_ns: of a step, ahead of its first micro-batch and behind its last one.
        forward_overlapped_ns, backward_overlapped_ns, weight_overlapped_ns, before_overlapped_ns, after_overlapped_ns:
            what goes on beside each of these.
        forward_waited_ns, backward_waited_ns, weight_waited_ns: of a micro-batch, the collectives that it waits for.
        backward_covered_ns: of a micro-batch, those that gradients of weights are computed beside, if they are.
        forward_copied_ns, backward_copied_ns, weight_copied_ns: of a micro-batch, what moves to the host and back.
        static_bytes: held for ever.
        step_bytes: of a step, held through all its passes, but for sums.
        behind_bytes: of a step, held until its last backward pass.
        ahead_bytes: of a step, held until its last forward pass.
        sum_bytes: of sums of gradients, while these are added up.
        summed_bytes: of what is left of these then, until the update: the same, or what they are exchanged for.
        update_bytes: the most that is held beside what is held for ever at any time, while the update runs.
        saved_bytes: of a micro-batch, held from its forward pass to its backward pass alone.
        waiting_bytes: of a micro-batch, held from its forward pass to its gradients of weights, where these are apart.
        deferred_bytes: of a micro-batch, held from its backward pass to its gradients of weights, where these wait.
        passing_bytes: the most that is held besides at any time, while it runs.
        host_bytes: held in the host's memory.
    """

    forward_ns: int = 0
    backward_ns: int = 0
    weight_ns: int = 0
    before_ns: int = 0
    after_ns: int = 0
    forward_overlapped_ns: int = 0
    backward_overlapped_ns: int = 0
    weight_overlapped_ns: int = 0
    before_overlapped_ns: int = 0
    after_overlapped_ns: int = 0
    forward_waited_ns: int = 0
    backward_waited_ns: int = 0
    weight_waited_ns: int = 0
    backward_covered_ns: int = 0
    forward_copied_ns: int = 0
    backward_copied_ns: int = 0
    weight_copied_ns: int = 0
    static_bytes: int = 0
    step_bytes: int = 0
    behind_bytes: int = 0
    ahead_bytes: int = 0
    sum_bytes: int = 0
    summed_bytes: int = 0
    update_bytes: int = 0
    saved_bytes: int = 0
    waiting_bytes: int = 0
    deferred_bytes: int = 0
    passing_bytes: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The first layer with all ahead of it, any layer between, and the last layer with all behind it."""

    first: LayerPart
    middle: LayerPart
    last: LayerPart


def parts_of(graph: Graph, layout: Layout, arrangement: Arrangement, cost: CostModel) -> ModelParts:
    """The parts of a short model that is laid out on one stage."""
    found = [_Sum() for _ in range(LAYERS)]
    at = places_of(graph)
    apart = weight_gradients(graph)
    took_ns = acts_ns(all_features(graph, layout, arrangement, cost), cost)
    places = [_place_of(graph, arrangement, action, cost, apart) for action in arrangement.actions]
    for (part, name), act_ns in zip(places, took_ns, strict=True):
        found[at[part]].add(name, act_ns)
    ranks = len(layout.stages.placements[0].devices)
    for i, covered_ns in covered_acts(graph, arrangement, took_ns, cost, ranks) if cost.cluster.overlaps else ():
        part, name = places[i]
        if name in COVERED:
            found[at[part]].add(name, -covered_ns)
            found[at[part]].add(COVERED[name], covered_ns)
    _hold(graph, layout, arrangement, at, found, apart, overlaps=cost.cluster.overlaps)
    return ModelParts(*(each.freeze() for each in found))


def slowest_parts(models: Sequence[ModelParts]) -> ModelParts:
    """The most that each part takes and holds, of the same model on several stages."""
    names = [each.name for each in fields(LayerPart)]

    def most(parts: Sequence[LayerPart]) -> LayerPart:
        return LayerPart(*(max(getattr(part, name) for part in parts) for name in names))

    return ModelParts(*(most([getattr(one, each.name) for one in models]) for each in fields(ModelParts)))


class _Sum:
    """A part whose times and bytes are added one by one."""

    def __init__(self) -> None:
        self.of = {field.name: 0 for field in fields(LayerPart)}

    def add(self, name: str, more: int) -> None:
        """Add nanoseconds or bytes."""
        self.of[name] += more

    def freeze(self) -> LayerPart:
        """The part."""
        return LayerPart(**self.of)


def _place_of(
    graph: Graph, arrangement: Arrangement, action: Action, cost: CostModel, apart: frozenset[str]
) -> tuple[str, str]:
    """(the op that an act belongs to, where its nanoseconds count)."""
    op = _belongs_to(graph, arrangement, action)
    name = _pass_of(action, apart=op.name in apart)
    if action.step is not None and action.kind is not ActKind.TRANSFER:
        value = arrangement.tensors[action.writes[0]].value
        beside = cost.cluster.overlaps and is_overlapped(graph, value, action.rate, action.phase)
        name = OVERLAPPED[name] if beside else WAITED.get(name, name)
    elif action.kind is ActKind.COPY and cost.cluster.overlaps:
        name = COPIED.get(name) or OVERLAPPED[name]
    return op.name, name


def _pass_of(action: Action, *, apart: bool) -> str:
    """The pass that an act belongs to."""
    if action.phase is Phase.UPDATE:
        return "after_ns"
    if action.rate is Rate.STEP:
        return "before_ns"
    if action.phase is Phase.FORWARD:
        return "forward_ns"
    return "weight_ns" if apart or action.phase is Phase.WEIGHT else "backward_ns"


def _belongs_to(graph: Graph, arrangement: Arrangement, action: Action) -> Op:
    """The op that an act is, or that a conversion is made for."""
    if action.op:
        return graph.by_name[action.op]
    return owner_of(graph, arrangement.tensors[action.writes[0]].value)


def _hold(
    graph: Graph,
    layout: Layout,
    arrangement: Arrangement,
    at: Mapping[str, int],
    found: list[_Sum],
    apart: frozenset[str],
    *,
    overlaps: bool,
) -> None:
    """Add what tensors hold: for ever, for a step, from pass to pass, or in passing.

    `apart` are gradients of weights; `overlaps`: whether collectives run beside computation.
    """
    uses = _uses(arrangement, apart)
    update = next((i for i, action in enumerate(arrangement.actions) if action.phase is Phase.UPDATE), 0)
    rank = layout.stages.placements[0].devices[0]
    passing, updating = ([_Profile() for _ in range(LAYERS)] for _ in range(2))
    moved = _moved_beside(graph, arrangement, at) if overlaps else {}
    exchanged = _exchanged(graph, arrangement) if overlaps else frozenset[int]()
    # The last layer runs backward before all others: what it exchanges is not there beside that of another.
    counted_once = {tensor for tensor, (place, phase) in moved.items() if place == LAYERS - 1 and phase in BACKWARD}
    over = _written_over(graph, layout, arrangement, uses, at, rank)
    until = {block: uses[index].end for index, block in over.items()}  # the last one that lies there ends last
    for index, tensor in enumerate(arrangement.tensors):
        value, use = graph.values[tensor.value], uses.get(index)
        nbytes = held_nbytes(graph, layout.stages, tensor, rank) // tensor.lifetime.blocks
        place = at[_holder(graph, tensor).name]
        if value.space is Space.HOST:
            found[place].add("host_bytes", nbytes)
        elif value.role is Role.VARIABLE:
            found[place].add("static_bytes", nbytes)
        elif use is None:
            continue
        elif value.rate is Rate.STEP:
            if _is_sum(graph, tensor.value):
                found[place].add("sum_bytes", nbytes)
                found[place].add("summed_bytes", 0 if index in exchanged else nbytes)
            elif use.passes:
                found[place].add(UNTIL.get(use.last, "step_bytes"), nbytes)
            elif index in exchanged:
                found[place].add("summed_bytes", nbytes)
            if use.end > update:
                updating[place].add(max(use.begin, update), use.end, nbytes)
        elif use.first is Phase.FORWARD and use.last is not Phase.FORWARD:
            found[place].add("waiting_bytes" if use.waits else "saved_bytes", nbytes)
            if not use.waits:
                passing[place].add(use.begin, until.get(index, use.end), nbytes)
        else:
            if use.waits and use.first is Phase.BACKWARD:
                found[place].add("deferred_bytes", nbytes)
            if index not in counted_once and index not in over:
                passing[place].add(use.begin, until.get(index, use.end), nbytes)
    beside = [dict.fromkeys((True, False), 0) for _ in range(LAYERS)]
    for index, (place, phase) in (*moved.items(), *(_travelling(arrangement, at) if overlaps else {}).items()):
        nbytes = held_nbytes(graph, layout.stages, arrangement.tensors[index], rank)
        beside[place][phase is Phase.FORWARD] += nbytes
    for part, in_passing, in_update, next_to in zip(found, passing, updating, beside, strict=True):
        # What is saved of the micro-batch that passes is there from its own act on, and until its own.
        part.add("passing_bytes", in_passing.most() - part.of["saved_bytes"] + max(next_to.values()))
        part.add("update_bytes", in_update.most())


def _written_over(
    graph: Graph, layout: Layout, arrangement: Arrangement, uses: Mapping[int, _Use], at: Mapping[str, int], rank: int
) -> dict[int, int]:
    """What an op leaves in the block of an operand that nothing reads any more: tensor -> whose block it lies in.

    In order of time, as the arena does it (`lowering/occupancy.py`); of what a micro-batch has in passing alone.
    """
    found: dict[int, int] = {}
    taken = set[int]()

    def form(index: int) -> tuple[object, ...]:
        tensor = arrangement.tensors[index]
        value, place = graph.values[tensor.value], at[_holder(graph, tensor).name]
        nbytes = held_nbytes(graph, layout.stages, tensor, rank)
        kind = value.role is Role.VARIABLE, value.rate, value.space, value.spec.dtype
        return *kind, tensor.lifetime.blocks, place, nbytes

    for time, action in enumerate(arrangement.actions):
        positions = op_definition(graph.by_name[action.op].kind).in_place if action.op and action.writes else ()
        others = {index for position, index in enumerate(action.reads) if position not in positions}
        for position in positions:
            source, target = action.reads[position], action.writes[0]
            use = uses[target]
            is_passing = use.begin == time and not use.waits and (use.first is use.last is not Phase.UPDATE)
            is_free = uses[source].end == time + 1 and source not in others and source not in taken
            if is_passing and is_free and action.rate is Rate.MICRO_BATCH and form(source) == form(target):
                found[target] = found.get(source, source)
                taken.add(source)
                break
    return found


def _exchanged(graph: Graph, arrangement: Arrangement) -> frozenset[int]:
    """Sums that the update reads exchanged alone, as soon as they are whole; and what it reads of these."""
    tensors, actions = arrangement.tensors, arrangement.actions
    updates = [action for action in actions if action.phase is Phase.UPDATE]
    kept = {tensor for action in updates if action.op for tensor in action.reads}
    sums = {i for i, tensor in enumerate(tensors) if _is_sum(graph, tensor.value)}
    moved, found = sums - kept, set[int]()
    for action in updates:
        if not action.op and not moved.isdisjoint(action.reads):
            moved.update(action.writes)
            found.update(kept.intersection(action.writes))
    return frozenset(found | (sums - kept))


def _moved_beside(graph: Graph, arrangement: Arrangement, at: Mapping[str, int]) -> dict[int, tuple[int, Phase]]:
    """What is gathered or exchanged, which is there of one layer or another at any time: tensor -> (part, pass)."""
    found, parameters = {}, of_parameters(graph)
    for action in arrangement.actions:
        if action.rate is not Rate.MICRO_BATCH or not action.kind.is_communication or action.kind is ActKind.TRANSFER:
            continue
        value = arrangement.tensors[action.writes[0]].value
        if is_overlapped(graph, value, action.rate, action.phase):
            moved = (action.writes if value in parameters else action.reads)[0]
            found[moved] = at[_belongs_to(graph, arrangement, action).name], action.phase
    return found


def _travelling(arrangement: Arrangement, at: Mapping[str, int]) -> dict[int, tuple[int, Phase]]:
    """What of another layer leaves for the host or comes back beside a layer's own: tensor -> (part, pass)."""
    copies = (a for a in arrangement.actions if a.kind is ActKind.COPY and a.op and a.rate is Rate.MICRO_BATCH)
    return {(a.reads if a.phase is Phase.FORWARD else a.writes)[0]: (at[a.op], a.phase) for a in copies}


@dataclass(frozen=True, slots=True)
class _Use:
    """When a tensor is used: [begin, end) in indices of acts, and by whom.

    Attributes:
        begin, end: from the first to the last use.
        first, last: the passes of these; gradients of weights are one of their own.
        waits: whether gradients of weights read it.
        passes: whether it is there while micro-batches pass: what is made of a step's values on the way to what these
            read is gone by then, what the update makes is not there yet.
    """

    begin: int
    end: int
    first: Phase
    last: Phase
    waits: bool
    passes: bool


def _uses(arrangement: Arrangement, apart: frozenset[str]) -> dict[int, _Use]:
    """Tensor -> its use."""
    times: dict[int, list[int]] = {}
    for time, action in enumerate(arrangement.actions):
        for index in {*action.reads, *action.writes, *action.updates}:
            times.setdefault(index, []).append(time)
    phases = [Phase.WEIGHT if action.op in apart else action.phase for action in arrangement.actions]
    for time in reversed(range(len(phases))):
        action = arrangement.actions[time]
        readers = [later for index in action.writes for later in times[index] if later > time]
        if not action.op and readers and all(phases[later] is Phase.WEIGHT for later in readers):
            phases[time] = Phase.WEIGHT  # a conversion for gradients of weights alone
    found = {}
    for index, found_at in times.items():
        rates = {arrangement.actions[time].rate for time in found_at}
        here = {phases[time] for time in found_at}
        passes = Rate.MICRO_BATCH in rates or (Phase.UPDATE in here and len(here) > 1)
        waits = any(phases[time] is Phase.WEIGHT for time in found_at[1:])
        found[index] = _Use(found_at[0], found_at[-1] + 1, phases[found_at[0]], phases[found_at[-1]], waits, passes)
    return found


class _Profile:
    """Bytes over time."""

    def __init__(self) -> None:
        self.change: dict[int, int] = {}

    def add(self, begin: int, end: int, nbytes: int) -> None:
        """Add what is held in [begin, end)."""
        self.change[begin] = self.change.get(begin, 0) + nbytes
        self.change[end] = self.change.get(end, 0) - nbytes

    def most(self) -> int:
        """The most that is held at any time."""
        live = most = 0
        for time in sorted(self.change):
            live += self.change[time]
            most = max(most, live)
        return most


def _is_sum(graph: Graph, value: str) -> bool:
    """Whether the gradients of micro-batches are added up in it."""
    producer = graph.producer.get(value)
    return producer is not None and op_definition(producer.kind).accumulates


def _holder(graph: Graph, tensor: Held) -> Op:
    """The op beside which a tensor is held: who writes it, else who reads it first."""
    return graph.producer.get(tensor.value) or graph.updater.get(tensor.value) or graph.consumers[tensor.value][0]
