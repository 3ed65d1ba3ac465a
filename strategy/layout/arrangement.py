"""Arrangement: every tensor that a laid-out graph holds and every action that it takes, in canonical order.

This is the one reading of a layout that pricing, memory and lowering share, so that what the search counts is what
the executor does. Time is the index of an op in the graph. A value lives on its home stage from its producer to its
last reader there; its copies on a stage live from the value's first reader on that stage to its last. Conversions
within a stage happen right before that first reader, and so do, on the stage where they arrive, those from elsewhere;
those that leave a stage, and those of gradients, happen right after the producer. Where collectives run beside
computation they run as soon as they can, and what they write is counted from then on.

Lifetimes belong to values, not to layouts: they are the same whatever the signatures, which is what makes memory a
linear function of the choice, at the price of counting a tensor that is read only through a copy for as long
as the copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice

from strategy.base.errors import InternalError
from strategy.comm.boxing import BoxingStep
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Movement
from strategy.layout.in_flight import Leg, UnitRun, unit_run
from strategy.layout.layout import Copy, Home, Layout, Stages, home_of, wanted_copies
from strategy.layout.schedule import Schedule
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Rate


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step is cut into micro-batches and ordered.

    `overlaps`: whether collectives run beside computation; `laps`: how often a micro-batch passes all stages;
    `bucket_bytes` and `exchange_streams`: how gradients are exchanged together (see `PlanConfig`), which the program
    follows, and no lifetime; `shared_ticks`: what collectives that are waited for take from those beside computation;
    `message_ticks`: what messages of every stage take from these.
    """

    num_micro_batches: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    overlaps: bool = False
    laps: int = 1
    bucket_bytes: int = 0
    exchange_streams: int = 1
    shared_ticks: int = 0
    message_ticks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a tensor is held on its stage, as [begin, end) in op indices, and in how many blocks."""

    begin: int
    end: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Held:
    """One physical tensor of a stage: a value at home, a copy, or an intermediate of a conversion."""

    name: str
    value: str
    stage: int
    layout: NdSbp
    lifetime: Lifetime


@dataclass(frozen=True, slots=True)
class Action:
    """One op, boxing step, transfer or load; `reads`, `writes` and `updates` index the tensors.

    Of an op, what it only waits for is read last. `members` are the actions that one of several stands for: what it
    reads and writes are theirs, in order. `turn` numbers the exchanges that go round over streams.
    """

    name: str
    kind: ActKind
    stage: int
    phase: Phase
    rate: Rate
    time: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    updates: tuple[int, ...] = ()
    op: str = ""
    step: BoxingStep | None = None
    lap: int = 0
    members: tuple[Action, ...] = ()
    turn: int = 0


@dataclass(frozen=True)
class Arrangement:
    """All tensors and all actions, the actions in canonical order."""

    tensors: tuple[Held, ...]
    actions: tuple[Action, ...]

    @cached_property
    def by_stage(self) -> dict[int, tuple[Action, ...]]:
        """Stage -> its actions in order; a transfer belongs to its sender."""
        found: dict[int, list[Action]] = {}
        for action in self.actions:
            found.setdefault(action.stage, []).append(action)
        return {stage: tuple(actions) for stage, actions in found.items()}


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of values and copies: functions of graph, stages and pipeline alone."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline

    @cached_property
    def time_of(self) -> dict[str, int]:
        """Op name -> its index."""
        return {op.name: time for time, op in enumerate(self.graph.ops)}

    @cached_property
    def horizon(self) -> int:
        """The end of time: the number of ops."""
        return len(self.graph.ops)

    def readers(self, value: str, stage: int) -> Sequence[Op]:
        """Ops of `stage` that read `value`, in order."""
        return self._readers.get((value, stage), ())

    @cached_property
    def _readers(self) -> dict[tuple[str, int], list[Op]]:
        found: dict[tuple[str, int], list[Op]] = {}
        for value, ops in self.graph.consumers.items():
            for op in ops:
                found.setdefault((value, self.stages.stage_of[op.name]), []).append(op)
        return found

    def leaves(self, value: str, stage: int) -> bool:
        """Whether `value`, at home on `stage`, is read on another stage."""
        return any(self.stages.stage_of[op.name] != stage for op in self.graph.consumers[value])

    @cached_property
    def run(self) -> UnitRun:
        """What micro-batches in flight are counted from."""
        pipeline, count = self.pipeline, len(self.stages.placements)
        return unit_run(pipeline.schedule, count, pipeline.num_micro_batches, pipeline.laps)

    def leg(self, op: Op) -> Leg:
        """The leg in which an op runs."""
        return self._legs[op.name]

    @cached_property
    def _legs(self) -> dict[str, Leg]:
        """Of every op; those of one leg have one object."""
        known: dict[tuple[Phase, int, int], Leg] = {}
        found = {}
        for op in self.graph.ops:
            where = op.phase, self.stages.stage_of[op.name], self.stages.lap_of(op.name)
            found[op.name] = known[where] if where in known else known.setdefault(where, Leg(*where))
        return found

    def first_leg(self, value: str, stage: int) -> Leg:
        """The leg of `stage` that first reads a value: backwards, of two laps the later one."""
        return min(map(self.leg, self.readers(value, stage)), key=lambda leg: self.run.begins_of(leg)[0])

    def whole(self, blocks: int) -> Lifetime:
        """Held for the whole step."""
        if blocks not in self._whole:
            self._whole[blocks] = Lifetime(0, self.horizon, blocks)
        return self._whole[blocks]

    @cached_property
    def _whole(self) -> dict[int, Lifetime]:
        """Those that `whole` has given."""
        return {}

    def home(self, name: str, stage: int) -> Lifetime:
        """Of a value where it was written."""
        value = self.graph.values[name]
        if value.role is Role.VARIABLE or value.rate is Rate.STEP:
            return self.whole(1)
        producer = self.graph.producer[name]
        readers = self.readers(name, stage)
        begin = self.time_of[producer.name]
        waiting = [op for op in self.graph.followers.get(name, ()) if self.stages.stage_of[op.name] == stage]
        held_by = (*readers, *waiting)
        end = max((self.time_of[op.name] for op in held_by), default=begin) + 1
        found = self._of_pieces(self.leg(producer), held_by, begin, end, moves=self.leaves(name, stage))
        brought = op_definition(producer.kind).cost == Movement(Space.DEVICE)
        return self._moved(found, producer, stage) if brought else found

    def _moved(self, brought: Lifetime, op: Op, stage: int) -> Lifetime:
        """Of what comes from the host beside computation: it may be there as soon as what its copy waits for is."""
        if not self.pipeline.overlaps:
            return brought
        waits = [n for n in op.after if self.stages.stage_of[self.graph.producer[n].name] == stage]
        if not waits:
            return self.whole(brought.blocks)
        return replace(brought, begin=min(brought.begin, *(self.time_of[self.graph.producer[n].name] for n in waits)))

    def copy(self, name: str, stage: int, *, arrives: bool) -> Lifetime:
        """Of a converted copy on `stage`; `arrives` if a transfer or a loader writes it itself."""
        value = self.graph.values[name]
        readers = self.readers(name, stage)
        if value.rate is Rate.STEP:
            return self.whole(1)
        begin, written = self.conversion_time(name, stage), self.first_leg(name, stage)
        producer = self.graph.producer.get(name)
        if producer is not None and begin == self.time_of[producer.name]:
            written = self.leg(producer)
        end = self.time_of[readers[-1].name] + 1
        found = self._of_pieces(written, readers, begin, end, moves=arrives, loaded=producer is None)
        if arrives and producer is not None:
            waiting = self.run.in_flight(self.leg(producer), {self.leg(op) for op in readers}, arrives=True)
            found = replace(found, blocks=max(found.blocks, waiting))
        return self._ahead(found, name, stage)

    def _ahead(self, converted: Lifetime, name: str, stage: int) -> Lifetime:
        """Of what a conversion writes, where collectives run beside computation: it begins when its value is there.

        What comes from another stage or an earlier pass may be there at any time.
        """
        producer = self.graph.producer.get(name)
        if producer is None or not self.pipeline.overlaps:
            return converted
        written, read = self.leg(producer), self.first_leg(name, stage)
        if written.stage != stage:
            return self.whole(converted.blocks)
        one_pass = self.pipeline.num_micro_batches == 1 and self.run.straight(written, [read])
        if not (one_pass or written == read):
            return self.whole(converted.blocks)
        return replace(converted, begin=min(converted.begin, self.time_of[producer.name]))

    def _of_pieces(
        self, written: Leg, readers: Sequence[Op], begin: int, end: int, *, moves: bool, loaded: bool = False
    ) -> Lifetime:
        """Of a micro-batch tensor: a block per micro-batch in flight; one more if a transfer or loader touches it.

        Loaders alone run ahead into the next step: else no more than a step has micro-batches.

        What lives within a chunk, and what else is written and read before the next micro-batch's is written, lives as
        long as the graph says, if a stage does meanwhile what the graph has meanwhile.
        """
        read = {self.leg(op) for op in readers}
        within = read <= {written}
        blocks = (1 if within else self.run.in_flight(written, read)) + moves
        if not loaded:
            blocks = min(blocks, self.pipeline.num_micro_batches)
        if blocks == 1 and not moves and (within or self.run.straight(written, read)):
            return Lifetime(begin, end, 1)
        return self.whole(blocks)

    @property
    def _in_turn(self) -> int:
        """Blocks of what a transfer moves: one is filled while the other is sent."""
        return min(2, self.pipeline.num_micro_batches)

    def intermediate(self, copy: Copy, time: int, *, arrives: bool, departs: bool) -> Lifetime:
        """Of a step within the conversion to `copy`; whether a transfer writes it, and whether one reads it."""
        if self.graph.values[copy.value].rate is Rate.STEP:
            return self.whole(1)
        if arrives:
            first, sent = self.first_leg(copy.value, copy.stage), self.leg(self.graph.producer[copy.value])
            return self.whole(max(self._in_turn, self.run.in_flight(sent, [first], arrives=True)))
        if departs:
            return self.whole(self._in_turn)
        last = self.time_of[self.readers(copy.value, copy.stage)[0].name] if self.pipeline.overlaps else time
        return self._ahead(Lifetime(time, max(time, last) + 1, 1), copy.value, copy.stage)

    def early(self, name: str) -> bool:
        """Whether conversions of a value within its stage follow its producer rather than precede its first reader.

        Gradients on their way to the update are reduced as soon as they are there.
        """
        if name not in self._early:
            producer = self.graph.producer.get(name)
            backward = producer is not None and producer.phase in (Phase.BACKWARD, Phase.WEIGHT)
            self._early[name] = backward and all(op.phase is Phase.UPDATE for op in self.graph.consumers[name])
        return self._early[name]

    @cached_property
    def _early(self) -> dict[str, bool]:
        """What `early` has found."""
        return {}

    def conversion_time(self, name: str, stage: int) -> int:
        """When the copies of a value on a stage are made (on the stage, for values of other stages)."""
        if self.early(name) and self.stages.stage_of[self.graph.producer[name].name] == stage:
            return self.time_of[self.graph.producer[name].name]
        return self.time_of[self.readers(name, stage)[0].name]

    def when(self, name: str, home: int, stage: int, *, at: int) -> tuple[Phase, int]:
        """(phase, lap) in which a conversion from stage `home` to a copy on `stage` runs on `at`, which is one of them.

        What is converted once per step runs before the first chunk or after the last, for a lap.
        """
        producer = self.graph.producer.get(name)
        if self.graph.values[name].rate is Rate.STEP:
            derived = producer is None or all(self.graph.values[read].rate is Rate.STEP for read in producer.inputs)
            phase = Phase.FORWARD if producer is None else producer.phase if derived else Phase.UPDATE
            return phase, self.stages.lap_of(owner_of(self.graph, name).name)
        if producer is None:
            return Phase.FORWARD, 0
        departs = at != stage or (at == home and self.early(name))
        leg = self.leg(producer) if departs else self.first_leg(name, stage)
        return leg.phase, leg.lap

    def departure_time(self, name: str) -> int:
        """When a value that leaves its stage is sent: after its producer; a variable, at its first use."""
        producer = self.graph.producer.get(name)
        return self.time_of[producer.name] if producer is not None else 0


def act_kind(op: Op) -> ActKind:
    """What an act of an op is: it computes, or moves something between a device and its host."""
    return ActKind.COPY if isinstance(op_definition(op.kind).cost, Movement) else ActKind.COMPUTE


def owner_of(graph: Graph, value: str) -> Op:
    """Whom conversions of a value are made for: its first reader, but its writer where the update alone reads it."""
    readers, producer = graph.consumers[value], graph.producer.get(value)
    if producer is not None and (not readers or all(reader.phase is Phase.UPDATE for reader in readers)):
        return producer
    return readers[0]


def held_by_conversion(
    lifetimes: Lifetimes, copy: Copy, source: Home, steps: Sequence[BoxingStep]
) -> Iterator[tuple[int, NdSbp, Lifetime, int]]:
    """(stage, layout, lifetime, time) of the tensor that each step writes; the last is the copy itself."""
    crosses = source.stage != copy.stage
    stage = source.stage
    departure = lifetimes.departure_time(copy.value) if crosses else lifetimes.conversion_time(copy.value, copy.stage)
    for position, step in enumerate(steps):
        arrives = step.kind is ActKind.TRANSFER
        stage = copy.stage if arrives else stage
        time = lifetimes.conversion_time(copy.value, copy.stage) if stage == copy.stage else departure
        if position == len(steps) - 1:
            lifetime = lifetimes.copy(copy.value, copy.stage, arrives=arrives)
        else:
            departs = steps[position + 1].kind is ActKind.TRANSFER
            lifetime = lifetimes.intermediate(copy, time, arrives=arrives, departs=departs)
        yield stage, step.target, lifetime, time


def arrange(graph: Graph, layout: Layout, pipeline: Pipeline) -> Arrangement:
    """Lay out a graph in time: all tensors, all actions."""
    return _Arranger(graph, layout, Lifetimes(graph, layout.stages, pipeline)).arrange()


class _Arranger:
    """Collects tensors and actions while walking over the ops."""

    def __init__(self, graph: Graph, layout: Layout, lifetimes: Lifetimes) -> None:
        self.graph, self.layout, self.lifetimes = graph, layout, lifetimes
        self.tensors: list[Held] = []
        self.actions: list[Action] = []
        self.held: dict[tuple[str, int], list[tuple[NdSbp, int]]] = {}
        """By value and stage, the tensors of its layouts."""
        self.homes: dict[str, int] = {}
        self.home = {name: home_of(graph, layout.stages, layout.signatures, name) for name in graph.values}
        self.wanted = wanted_copies(graph, layout.stages, layout.signatures)
        self.conversion_of = {conversion.copy: conversion for conversion in layout.conversions}
        self.under_way: dict[Copy, tuple[int, int]] = {}

    def arrange(self) -> Arrangement:
        """Homes first, then every op between the conversions that precede and follow it."""
        self._declare_homes()
        before: dict[int, list[Copy]] = {}
        after: dict[int, list[Copy]] = {}
        for copy in self.wanted:
            home = self.home[copy.value]
            if home is None:
                before.setdefault(self.lifetimes.conversion_time(copy.value, copy.stage), []).append(copy)
            elif (home.stage, home.layout) == (copy.stage, copy.layout):
                self._give(copy, self.homes[copy.value])
            elif home.stage != copy.stage:
                slot = after if copy.value in self.graph.producer else before
                slot.setdefault(self.lifetimes.departure_time(copy.value), []).append(copy)
                before.setdefault(self.lifetimes.conversion_time(copy.value, copy.stage), []).append(copy)
            else:
                slot = after if self.lifetimes.early(copy.value) else before
                slot.setdefault(self.lifetimes.conversion_time(copy.value, copy.stage), []).append(copy)
        for time, op in enumerate(self.graph.ops):
            for copy in before.get(time, ()):
                self._convert(copy)
            self._act(op, time)
            for copy in after.get(time, ()):
                self._convert(copy)
        return Arrangement(tuple(self.tensors), tuple(self.actions))

    def _give(self, copy: Copy, tensor: int) -> None:
        """A tensor is the copy that ops of its stage read."""
        self.held.setdefault((copy.value, copy.stage), []).append((copy.layout, tensor))

    def _copy(self, value: str, stage: int, layout: NdSbp) -> int:
        """The tensor that an op reads."""
        for known, tensor in self.held[value, stage]:
            if known == layout:
                return tensor
        raise InternalError(f"{value} is read on stage {stage} before it is there")

    def _hold(self, name: str, value: str, stage: int, layout: NdSbp, lifetime: Lifetime) -> int:
        self.tensors.append(Held(name, value, stage, layout, lifetime))
        return len(self.tensors) - 1

    def _declare_homes(self) -> None:
        for name, home in self.home.items():
            if home is not None:
                lifetime = self.lifetimes.home(name, home.stage)
                self.homes[name] = self._hold(name, name, home.stage, home.layout, lifetime)

    def _act(self, op: Op, time: int) -> None:
        stage = self.layout.stages.stage_of[op.name]
        layouts = self.layout.signatures[op.name].inputs
        reads = tuple([self._copy(n, stage, nd) for n, nd in zip(op.inputs, layouts, strict=True)])
        waits = tuple([self.homes[n] for n in op.after if self.tensors[self.homes[n]].stage == stage])
        self.actions.append(
            Action(
                name=op.name,
                kind=act_kind(op),
                stage=stage,
                phase=op.phase,
                rate=act_rate(self.graph, op),
                time=time,
                reads=reads + waits,
                writes=tuple([self.homes[n] for n in op.outputs]),
                updates=tuple([self.homes[n] for n in op.updates]),
                op=op.name,
                lap=self.layout.stages.lap_of(op.name),
            )
        )

    def _convert(self, copy: Copy) -> None:
        """The steps to a copy; of one from another stage those up to the transfer, and when called again the rest."""
        value = self.graph.values[copy.value]
        name = f"{copy.value}>{'.'.join(map(str, copy.layout))}@{copy.stage}"
        home = self.home[copy.value]
        if home is None:
            self._load(copy, name)
            return
        conversion = self.conversion_of[copy]
        begin, here = self.under_way.pop(copy, (0, self.homes[copy.value]))
        steps = held_by_conversion(self.lifetimes, copy, home, conversion.steps)
        for position, (stage, target, lifetime, time) in islice(enumerate(steps), begin, None):
            step = conversion.steps[position]
            last = position == len(conversion.steps) - 1
            written = self._hold(name if last else f"{name}.{position}", copy.value, stage, target, lifetime)
            sender = self.tensors[here].stage
            phase, lap = self.lifetimes.when(copy.value, conversion.source.stage, copy.stage, at=sender)
            self.actions.append(
                Action(
                    name=f"{name}:{step.kind}.{position}",
                    kind=step.kind,
                    stage=sender,
                    phase=phase,
                    rate=value.rate,
                    time=time,
                    reads=(here,),
                    writes=(written,),
                    step=step,
                    lap=lap,
                )
            )
            here = written
            if step.kind is ActKind.TRANSFER:
                self.under_way[copy] = position + 1, here
                return
        self._give(copy, here)

    def _load(self, copy: Copy, name: str) -> None:
        lifetime = self.lifetimes.copy(copy.value, copy.stage, arrives=True)
        written = self._hold(name, copy.value, copy.stage, copy.layout, lifetime)
        self._give(copy, written)
        self.actions.append(
            Action(
                name=f"load {name}",
                kind=ActKind.LOAD,
                stage=copy.stage,
                phase=Phase.FORWARD,
                rate=Rate.MICRO_BATCH,
                time=self.lifetimes.conversion_time(copy.value, copy.stage),
                reads=(),
                writes=(written,),
                lap=self.lifetimes.leg(self.lifetimes.readers(copy.value, copy.stage)[0]).lap,
            )
        )
