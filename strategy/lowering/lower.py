"""Lower: from a laid-out graph to the program of every rank.

Every tensor becomes a register on each rank of its stage, every action an actor. A stage takes its actions in one order
(`stage_order`), and each stream of a rank is the subsequence that belongs to it:

    compute      ops, slices, and on a CPU, whose core copies by itself, all collectives and copies
    intra        collectives inside nodes that a layer waits for, where they overlap
    inter        the same between nodes
    intra data   gathers of parameters and exchanges of gradients inside nodes, where they overlap
    inter data   the same between nodes; `inter data 1` and so on, where exchanges go round over several streams
    d2h, h2d     copies to the host and back, where they overlap
    0>1          transfers from one stage to another
    load         inputs; dynamic

Collectives of one kind on one level of the network queue. Gradients and parameters travel beside what a layer waits
for; where that is on one level, they share its links. All streams keep the order of the stage, so that more of them
take waits away and add none: what finishes on one finishes on two. A collective that goes inside nodes and
between them is one act, and queues with those between. Transfers have a stream per pair of
stages, for both ends must take them in one order, the sender's, and no collective of a stage waits for another stage.

Links. Every rank sends through one port per level of the network, which all its collectives and transfers share.
The priced time of an act is cut in two, the bytes that its busiest rank sends at the priced seconds per byte,
and the rest, its latency: alone, an act takes what the cost model says, and beside another on one port longer.
A collective between nodes of which several ranks are on one node uses the ports inside as well: its parts there, or,
where it has none, all that it sends, for of some rank all of it goes to a neighbour in its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import PlanError
from strategy.base.identity import Identity
from strategy.base.numbers import Numbers
from strategy.base.units import to_ns
from strategy.comm.hierarchical import box_size, meets_inside, nodes_of
from strategy.comm.rank_parts import boxing_task, meeting_ranks, transfer_task
from strategy.comm.sent_bytes import part_nbytes
from strategy.cost.cost import CostModel, expected, port_rates
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Movement, counts_flop
from strategy.layout.arrangement import Action, Arrangement, Held, Pipeline
from strategy.layout.layout import Layout
from strategy.layout.objective import Priced
from strategy.layout.overlapped import is_overlapped
from strategy.lowering.exchange_buckets import bucket_task, in_buckets
from strategy.lowering.folding import Folding, folding
from strategy.lowering.memory import allocated
from strategy.lowering.stage_order import stage_order
from strategy.program.program import (
    ActKind,
    Actor,
    BoxingTask,
    LoadTask,
    Message,
    OpTask,
    Port,
    Program,
    Register,
    Stream,
    Task,
    TransferTask,
    Work,
)
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import NdSbp, Partial, local_boxes
from strategy.sbp.tensor import Box, Rate, Shape, TensorSpec, box_shape

FOLDED_FROM = 32
MOST_UNFOLDED = 10_000
"""More ranks than these, or fewer with more actors in all, are simulated by those that stand for others, where there
are such: of few ranks that do little each is shown, and that takes no time; 32 with 5,000 actors each take 15 s."""

MOST_ACTORS = 1_000_000
MOST_ACTS = 100_000_000
"""Of all ranks in a step: an actor takes some 3 kB while it is lowered, an act 50 bytes while it is simulated."""


def lower(graph: Graph, layout: Layout, pipeline: Pipeline, cost: CostModel, *, tokens_per_step: int = 0) -> Program:
    """The program of one training step, every act priced by `cost` and every block in its place.

    Raises:
        PlanError: it is too large (`check_size`).
    """
    return lower_priced(Priced(graph, layout, pipeline, cost), tokens_per_step=tokens_per_step)


def lower_priced(
    priced: Priced,
    *,
    tokens_per_step: int = 0,
    folds: bool = False,
    folded_from: int | None = None,
    allocates: bool = True,
    budget: Budget = UNLIMITED,
    most_nbytes: Callable[[int], int] | None = None,
) -> Program:
    """The same of a graph that is priced already.

    Unless it `allocates`, nothing says where blocks lie: to be simulated it is enough.

    For simulation alone, `folds`: of more ranks than `folded_from` (FOLDED_FROM where it is not given) or more than
    MOST_UNFOLDED actors, if the ranks of a stage are alike, one per stage (`folding`).

    Raises:
        PlanError: it is too large (`check_size`).
        OutOfTimeError: the budget was over before it was done.
        InfeasibleError: a rank holds more than it may, where `most_nbytes` says of each how much that is.
    """
    graph, layout, pipeline, cost = priced.graph, priced.layout, priced.pipeline, priced.cost
    exchanged = in_buckets(priced)
    budget.check()
    arrangement, features = exchanged.arrangement, exchanged.features
    ranks = sum(len(placement.devices) for placement in layout.stages.placements)
    folded = None
    mixed = any(len(cost.cluster.groups_of(placement.devices)) > 1 for placement in layout.stages.placements)
    many = ranks > (FOLDED_FROM if folded_from is None else folded_from) or _actors_and_acts(priced)[0] > MOST_UNFOLDED
    if folds and many and not mixed:
        folded = folding(graph, layout, pipeline, cost.cluster, arrangement, features, budget)
    if folded is None:
        check_size(priced)
    lowering = _Lowering(graph, layout, pipeline, cost, arrangement, features, folded, budget)
    program = lowering.program(tokens_per_step)
    return allocated(program, budget, most_nbytes=most_nbytes) if allocates else program


def check_size(priced: Priced) -> None:
    """Refuse a graph whose ranks all together have more actors or acts than fit in memory.

    Raises:
        PlanError: how many there are, and how many there may be.
    """
    placements = priced.layout.stages.placements
    actors, acts = _actors_and_acts(priced)
    if actors > MOST_ACTORS or acts > MOST_ACTS:
        ranks = sum(len(placement.devices) for placement in placements)
        raise PlanError(
            f"too large to be lowered rank by rank: {ranks} ranks that cannot stand for one another",
            got=f"{actors} actors and {acts} acts a step",
            expected=f"at most {MOST_ACTORS} and {MOST_ACTS}",
            hint="choose fewer ranks or micro-batches, or degrees that divide the dims evenly, so that ranks are alike",
        )


def _actors_and_acts(priced: Priced) -> tuple[int, int]:
    """Of all ranks in a step; a transfer counts with all ranks of both stages, which is the most that meet in it."""
    placements, arrangement = priced.layout.stages.placements, priced.arrangement
    actors = acts = 0
    for action in arrangement.actions:
        stages = {arrangement.tensors[tensor].stage for tensor in (*action.reads, *action.writes)} | {action.stage}
        members = sum(len(placements[stage].devices) for stage in stages)
        actors += members
        acts += members * (1 if action.rate is Rate.STEP else priced.pipeline.num_micro_batches)
    return actors, acts


def model_flop(graph: Graph, pipeline: Pipeline) -> int:
    """FLOPs of the matrix products of one step on the logical tensors, each product once: what MFU counts."""
    return pipeline.num_micro_batches * sum(products_flop(graph).values())


def hardware_flop(graph: Graph, pipeline: Pipeline) -> int:
    """FLOPs of the matrix products of one step, those that are computed again included: what HFU counts."""
    return pipeline.num_micro_batches * sum(products_flop(graph, repeated=True).values())


def products_flop(graph: Graph, *, repeated: bool = False) -> dict[str, int]:
    """FLOPs of one micro-batch's matrix products on the logical tensors, by kind; with `repeated` also of clones."""
    found: dict[str, int] = {}
    for op in graph.ops:
        definition = op_definition(op.kind)
        if counts_flop(definition.cost) and op.phase is not Phase.UPDATE and (repeated or not op.repeats):
            read, written = expected(graph.specs(op.inputs)), expected(graph.specs(op.outputs))
            flop = definition.flop(read, written, op.attrs)
            found[op.kind] = found.get(op.kind, 0) + flop
    return found


@dataclass(slots=True)
class _Lowering:
    graph: Graph
    layout: Layout
    pipeline: Pipeline
    cost: CostModel
    arrangement: Arrangement
    features: Sequence[Features]
    folded: Folding | None
    budget: Budget
    registers: list[Register] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    ports: dict[tuple[int, int], dict[Rate, Port]] = field(default_factory=dict)
    """Of a tensor on a rank, for what acts at a rate."""
    box_of: dict[tuple[int, int], Box] = field(default_factory=dict)
    actors_of: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    rendezvous: int = 0
    loads: dict[object, int] = field(default_factory=dict)
    """By rank and what is loaded, the number of the last loader of it."""
    specs: Numbers[TensorSpec] = field(default_factory=Numbers)
    layouts: Numbers[NdSbp] = field(default_factory=Numbers)
    priced: Numbers[Features] = field(default_factory=Numbers)
    boxed: dict[object, BoxingTask] = field(default_factory=dict)
    transfers: dict[object, TransferTask] = field(default_factory=dict)
    first_apart: dict[object, tuple[Placement, Placement, TransferTask]] = field(default_factory=dict)
    """Tasks of acts between ranks: those of layers that are alike are the same."""
    works: dict[object, Work] = field(default_factory=dict)
    boxes: dict[tuple[int, int, Shape], list[tuple[Box, Shape]]] = field(default_factory=dict)

    def program(self, tokens_per_step: int) -> Program:
        """Registers, actors and streams."""
        self._make_registers()
        for index, action in enumerate(self.arrangement.actions):
            self.budget.check()
            self.actors_of[index] = list(self._make_actors(action, self.features[index]))
        ranks = sum(len(placement.devices) for placement in self.layout.stages.placements)
        return Program(
            ranks=ranks,
            registers=tuple(self.registers),
            actors=tuple(self.actors),
            streams=tuple(self._streams()),
            resources=port_rates(self.cost.cluster, ranks),
            num_micro_batches=self.pipeline.num_micro_batches,
            tokens_per_step=tokens_per_step,
            model_flop_per_step=model_flop(self.graph, self.pipeline),
            hardware_flop_per_step=hardware_flop(self.graph, self.pipeline),
            alike=() if self.folded is None else self.folded.alike,
            sent_bytes_per_step=() if self.folded is None else self.folded.sent_bytes_per_step,
        )

    def _ranks_of(self, stage: int) -> tuple[int, ...]:
        """The ranks of a stage that the program has."""
        devices = self.layout.stages.placements[stage].devices
        return devices if self.folded is None else devices[:1]

    def _make_registers(self) -> None:
        for index, held in enumerate(self.arrangement.tensors):
            value = self.graph.values[held.value]
            initial = 1 if value.role is Role.VARIABLE and held.name == held.value else 0
            spec, placement = value.spec, self.layout.stages.placements[held.stage]
            ragged, blocks = spec.ragged, held.lifetime.blocks
            boxes = self._boxes(spec, held.layout, placement.mesh)
            dtype, space = spec.dtype, value.space
            for rank, (box, shape) in zip(self._ranks_of(held.stage), boxes, strict=self.folded is None):
                port = Port(len(self.registers))
                shared = Port(port.register, self.pipeline.num_micro_batches) if value.rate is Rate.STEP else port
                self.ports[index, rank] = {Rate.STEP: port, Rate.MICRO_BATCH: shared}
                self.box_of[index, rank] = box
                place = () if ragged is None else box
                self.registers.append(
                    Register(held.name, rank, shape, dtype, blocks, initial, ragged, place, space=space)
                )

    def _boxes(self, spec: TensorSpec, layout: NdSbp, mesh: Shape) -> list[tuple[Box, Shape]]:
        """The pieces of all ranks of a mesh, with their shapes."""
        key = self.specs.of(spec), self.layouts.of(layout), mesh
        if key not in self.boxes:
            self.boxes[key] = [(box, box_shape(box)) for box in local_boxes(spec.shape, layout, mesh)]
        return self.boxes[key]

    def _make_actors(self, action: Action, features: Features) -> Iterator[tuple[str, int]]:
        """Add the actors of an action; gives (stream name, actor) of each."""
        if action.kind is ActKind.TRANSFER:
            yield from self._make_transfer(action, features)
            return
        name = self._stream_name(action, features)
        groups: dict[tuple[int, ...], int] = {}
        for rank in self._ranks_of(action.stage):
            task = self._task(action, features, rank)
            number = None
            if isinstance(task, BoxingTask) and action.kind.is_communication:
                number = groups.setdefault(task.group, self.rendezvous + len(groups))
            yield name, self._add_actor(action, rank, features, task, number)
        self.rendezvous += len(groups)

    def _stream_name(self, action: Action, features: Features) -> str:
        if action.kind is ActKind.LOAD:
            return "load"
        if action.kind is ActKind.COPY and self.pipeline.overlaps:
            cost = op_definition(self.graph.by_name[action.op].kind).cost
            return "d2h" if cost == Movement(Space.HOST) else "h2d"
        beside = self.pipeline.overlaps and self.cost.cluster.overlaps_on(features.level)
        if not (action.kind.is_communication and beside):
            return "compute"
        value = self.arrangement.tensors[action.writes[0]].value
        data = not action.op and is_overlapped(self.graph, value, action.rate, action.phase)
        number = action.turn % self.pipeline.exchange_streams
        return f"{features.level} data{f' {number}' if number else ''}" if data else features.level

    def _add_actor(self, action: Action, rank: int, features: Features, task: Task, number: int | None) -> int:
        there, rate = self.ports, action.rate
        reads = tuple([there[t, rank][rate] for t in action.reads if (t, rank) in there])
        writes = (*action.writes, *action.updates)
        ports = tuple([there[t, rank][rate] for t in writes if (t, rank) in there])
        acts = 1 if rate is Rate.STEP else self.pipeline.num_micro_batches
        work = self._work(action, rank, features, task)
        self.actors.append(Actor(action.name, rank, action.kind, reads, ports, acts, number, 0, work, task))
        return len(self.actors) - 1

    def _work(self, action: Action, rank: int, features: Features, task: Task) -> Work:
        """The same for equal features; between ranks, for the same task."""
        if isinstance(task, OpTask) and task.idle:
            return Work()
        between = isinstance(task, BoxingTask | TransferTask)
        key = self.priced.of(features), rank, Identity(task) if between else None
        if key not in self.works:
            self.works[key] = self._work_anew(action, rank, features, task)
        return self.works[key]

    def _work_anew(self, action: Action, rank: int, features: Features, task: Task) -> Work:
        if not isinstance(task, BoxingTask | TransferTask):
            return self.cost.work(features, rank, ())
        if isinstance(task, TransferTask) and not task.messages:
            return Work()
        spec = self.graph.values[self.arrangement.tensors[action.reads[0]].value].spec
        sent = part_nbytes(action.kind, task, rank, spec)
        if self.folded is not None and any(sent):
            sent = tuple(part.nbytes for part in features.parts or (features,))
        passes_inside = isinstance(task, BoxingTask) and meets_inside(self.cost.cluster, task.group)
        work = self.cost.work(features, rank, sent, passes_inside=passes_inside)
        if not (isinstance(task, BoxingTask) and task.members):
            return work
        packed = 2 * sum(box_size(member.source_boxes[0]) for member in task.members) * spec.dtype.nbytes
        copying_s = self.cost.seconds(Features(ActKind.SLICE, 0, packed, groups=features.groups))
        return replace(work, latency_ns=work.latency_ns + to_ns(copying_s))

    def _task(self, action: Action, features: Features, rank: int) -> Task:
        if action.op:
            written = (*action.writes, *action.updates)
            op = self.graph.by_name[action.op]
            operands = action.reads[: len(op.inputs)]
            return OpTask(
                op=action.op,
                inputs=tuple(range(len(operands))),
                outputs=tuple(range(len(action.reads), len(action.reads) + len(written))),
                input_boxes=tuple([self.box_of[t, rank] for t in operands]),
                output_boxes=tuple([self.box_of[t, rank] for t in written]),
                in_place=op_definition(op.kind).in_place,
            )
        target = self.arrangement.tensors[action.writes[0]]
        if action.members:
            return self._bucket_task(action, features, rank)
        if action.step is None:
            return self._load_task(target, self.box_of[action.writes[0], rank], rank)
        source = self.arrangement.tensors[action.reads[0]]
        spec, placement = self.graph.values[target.value].spec, self.layout.stages.placements[action.stage]
        layouts = self.layouts.of(source.layout), self.layouts.of(target.layout)
        key = self.specs.of(spec), layouts, action.step.axes, action.stage, rank, bool(features.parts)
        if key not in self.boxed:
            task = boxing_task(spec, source.layout, action.step, placement, rank)
            task = replace(task, nodes=nodes_of(self.cost.cluster, task.group)) if features.parts else task
            self.boxed[key] = task
        return self.boxed[key]

    def _bucket_task(self, action: Action, features: Features, rank: int) -> BoxingTask:
        """All members as one flat tensor."""
        found = (self._task(member, features, rank) for member in action.members)
        return bucket_task(action.kind, [task for task in found if isinstance(task, BoxingTask)])

    def _load_task(self, target: Held, box: Box, rank: int) -> LoadTask:
        """Of an input that is wanted as terms, the first rank of every partial axis holds the whole."""
        coords = self.layout.stages.placements[target.stage].coords(rank)
        terms = zip(target.layout, coords, strict=True)
        others = [sbp.reduce for sbp, coord in terms if isinstance(sbp, Partial) and coord]
        alike = rank, target.value, box, others[0] if others else None
        self.loads[alike] = number = self.loads.get(alike, -1) + 1
        return LoadTask((target.value,), (box,), {target.value: others[0]} if others else {}, number)

    def _make_transfer(self, action: Action, features: Features) -> Iterator[tuple[str, int]]:
        """One rendezvous per set of ranks that must meet; of a folded program, one of the two that stand for all."""
        source, written = (self.arrangement.tensors[t] for t in (action.reads[0], action.writes[0]))
        spec = self.graph.values[written.value].spec
        layouts = self.layouts.of(source.layout), self.layouts.of(written.layout)
        key = self.specs.of(spec), layouts, source.stage, written.stage
        if key not in self.transfers:
            self.transfers[key] = self._transfer(spec, source, written)
        whole = self.transfers[key]
        shown = {*self._ranks_of(source.stage), *self._ranks_of(written.stage)}
        name = f"{source.stage}>{written.stage}"
        if self.folded is not None:
            for rank in sorted(shown):
                yield name, self._add_actor(action, rank, features, whole, self.rendezvous)
            self.rendezvous += 1
            return
        for ranks in meeting_ranks(whole.messages):
            members = set(ranks)
            task = TransferTask(
                tuple(m for m in whole.messages if m.source in members),
                {r: box for r, box in whole.source_boxes.items() if r in members},
                {r: box for r, box in whole.target_boxes.items() if r in members},
            )
            for rank in ranks:
                yield name, self._add_actor(action, rank, features, task, self.rendezvous)
            self.rendezvous += 1
        yield from self._idle_ends(action, features, whole)

    def _transfer(self, spec: TensorSpec, source: Held, target: Held) -> TransferTask:
        """The task of all ranks of two stages; that of two others that are apart as well, with other ranks."""
        here, there = (self.layout.stages.placements[held.stage] for held in (source, target))
        apart = here.devices[-1] < there.devices[0] or there.devices[-1] < here.devices[0]
        if not apart or any(place.devices != tuple(sorted(place.devices)) for place in (here, there)):
            return transfer_task(spec, source.layout, here, target.layout, there)
        layouts = self.layouts.of(source.layout), self.layouts.of(target.layout)
        key = self.specs.of(spec), layouts, here.mesh, there.mesh
        if key not in self.first_apart:
            found = transfer_task(spec, source.layout, here, target.layout, there)
            self.first_apart[key] = here, there, found
        first_here, first_there, found = self.first_apart[key]
        sources = dict(zip(first_here.devices, here.devices, strict=True))
        targets = dict(zip(first_there.devices, there.devices, strict=True))
        return TransferTask(
            tuple([Message(sources[m.source], targets[m.target], m.box) for m in found.messages]),
            {sources[rank]: box for rank, box in found.source_boxes.items()},
            {targets[rank]: box for rank, box in found.target_boxes.items()},
        )

    def _idle_ends(self, action: Action, features: Features, whole: TransferTask) -> Iterator[tuple[str, int]]:
        """Senders whose replica nobody asked for still return the piece; receivers of nothing still have their copy."""
        busy = {m.source for m in whole.messages} | {m.target for m in whole.messages}
        stages = (self.arrangement.tensors[t].stage for t in (action.reads[0], action.writes[0]))
        name = ">".join(map(str, stages))
        for rank in dict.fromkeys((*whole.source_boxes, *whole.target_boxes)):
            if rank not in busy:
                ends = (
                    {r: box for r, box in boxes.items() if r == rank}
                    for boxes in (whole.source_boxes, whole.target_boxes)
                )
                yield name, self._add_actor(action, rank, features, TransferTask((), *ends), None)

    def _streams(self) -> Iterator[Stream]:
        sequences: dict[tuple[int, str], list[int]] = {}
        stages = len(self.layout.stages.placements)
        for lists, order in stage_order(self.graph, self.arrangement, self.pipeline, stages):
            self.budget.check()
            turns = [self._turns(actions) for actions in lists]
            for stream in {stream for found in turns for stream in found}:
                found = chain.from_iterable([turns[n][stream] for n in order if stream in turns[n]])
                sequences.setdefault(stream, []).extend(found)
        for (rank, name), sequence in sorted(sequences.items()):
            dynamic = name == "load"
            yield Stream(rank, name, tuple(dict.fromkeys(sequence)) if dynamic else tuple(sequence), dynamic)

    def _turns(self, actions: Sequence[int]) -> dict[tuple[int, str], list[int]]:
        """The actors of some actions in a row, by rank and stream."""
        found: dict[tuple[int, str], list[int]] = {}
        for index in actions:
            for name, actor in self.actors_of[index]:
                found.setdefault((self.actors[actor].rank, name), []).append(actor)
        return found
