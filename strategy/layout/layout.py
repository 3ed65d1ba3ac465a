"""Layout: where and how every tensor of a graph lives, and every conversion between.

Stages are placements, one per pipeline stage. An op runs on the stage that it is assigned to, under one signature, and
on one lap of the pipeline where micro-batches pass the stages several times (see `schedule`); a
value lives where its producer wrote it (a variable where its updater updates it, a frozen one where it is read first);
consumers that want another layout or are on another stage read a converted copy, and all who want the same copy share
it. Graph inputs are loaded in whatever layouts are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache

from strategy.base.errors import InputError, did_you_mean, report
from strategy.comm.boxing import BoxingStep
from strategy.graph.graph import Graph, Op, Phase, deciding_op
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature
from strategy.layout.schedule import Schedule, at_position
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp

_AHEAD, _BEHIND = 0.25, 0.5
"""What is done ahead of the layers and behind them, in layers, as a rule of thumb that settles ties."""

Assignment = Mapping[str, Signature]
"""Op name -> signature."""


@dataclass(frozen=True, slots=True)
class Stages:
    """Which placement each op runs on, and on which lap; disjoint placements in pipeline order.

    `homes` are those of frozen variables that are held already, by whoever trains them; the others live where they are
    read first. Ops that `laps` does not name run on the first lap.
    """

    placements: tuple[Placement, ...]
    stage_of: Mapping[str, int]
    homes: Mapping[str, Home] = field(default_factory=dict)
    laps: Mapping[str, int] = field(default_factory=dict)

    def lap_of(self, op: str) -> int:
        """The lap that an op runs on."""
        return self.laps.get(op, 0)

    def placement(self, op: str) -> Placement:
        """The placement that an op runs on."""
        return self.placements[self.stage_of[op]]


@dataclass(frozen=True, slots=True)
class Home:
    """Where a value is before any conversion."""

    stage: int
    layout: NdSbp


@dataclass(frozen=True, slots=True)
class Copy:
    """A value in the layout that consumers of one stage want."""

    value: str
    stage: int
    layout: NdSbp

    def __hash__(self) -> int:
        """Of what tells most of them apart: they are asked for all the time, and a layout has many parts."""
        return hash((self.value, self.stage))


@dataclass(frozen=True, slots=True)
class Conversion:
    """A chain of boxing steps from a value's home to one copy."""

    copy: Copy
    source: Home
    steps: tuple[BoxingStep, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything about where and how: what the search decides and the plan records."""

    stages: Stages
    signatures: Assignment
    conversions: tuple[Conversion, ...]


def assign_stages(
    graph: Graph,
    placements: tuple[Placement, ...],
    *,
    pins: Mapping[str, int] | None = None,
    schedule: Schedule = Schedule.ONE_F_ONE_B,
    laps: int = 1,
    runs: tuple[int, ...] = (),
) -> Stages:
    """Repeated layers in runs along the pipeline, see `layer_runs`; what precedes them first, what follows them last.

    A backward op runs where its forward op does; an update where the variable is first used; a repeat where it is read.

    Args:
        graph: the training graph.
        placements: one per stage, in pipeline order.
        pins: pattern of op names -> virtual stage, which is the stage where there is one lap; where several match, the
            last one counts. Backward and update ops follow the ops that they belong to, unless they are pinned
            themselves.
        schedule: says on which stage the places along the pipeline are.
        laps: how often a micro-batch passes all stages.
        runs: how many layers are at every place along the pipeline; as `layer_runs` deals them out, where that is left
            open.

    Raises:
        InputError: there are more or fewer layers than runs have, or a pin matches no op, names no stage, or makes the
            forward pass go backwards.
    """
    layers = max(graph.num_layers, 1)
    if runs and sum(runs) != layers:
        raise InputError("not the layers of the model", where="runs", got=runs, expected=f"{layers} in all")
    runs = runs or layer_runs(layers, schedule, len(placements), laps)
    places = _pipeline_positions(graph, runs, pins or {})
    at = {name: at_position(schedule, len(placements), place) for name, place in places.items()}
    on_lap = {name: lap for name, (_, lap) in at.items()} if laps > 1 else {}
    return Stages(placements, {name: stage for name, (stage, _) in at.items()}, laps=on_lap)


@lru_cache(maxsize=1 << 10)
def layer_runs(layers: int, schedule: Schedule, stages: int, laps: int) -> tuple[int, ...]:
    """How many layers are at every place along the pipeline: equally many, or one less.

    Less have first of all the stages with most to do, that of what follows the layers and that of what precedes them
    before others; and of their places the last.
    """
    places = stages * laps
    least, more = divmod(layers, places)
    stage_of = [at_position(schedule, stages, place)[0] for place in range(places)]
    runs = [least + 1] * places if more else [least] * places
    load = [float(sum(run for run, at in zip(runs, stage_of, strict=True) if at == stage)) for stage in range(stages)]
    load[stage_of[0]] += _AHEAD
    load[stage_of[-1]] += _BEHIND
    for _ in range((places - more) % places):
        place = max((p for p in range(places) if runs[p] > least), key=lambda p: (load[stage_of[p]], p))
        runs[place] -= 1
        load[stage_of[place]] -= 1
    return tuple(runs)


def _pipeline_positions(graph: Graph, runs: tuple[int, ...], pins: Mapping[str, int]) -> dict[str, int]:
    """Op -> its place along the pipeline, from 0."""
    count = len(runs)
    place_of_layer = [place for place, run in enumerate(runs) for _ in range(run)]
    pinned = _pinned_stages(graph, pins, count)
    stage_of: dict[str, int] = {}
    seen_layer = False
    for op in graph.ops:
        if op_definition(op.kind).repeats:
            continue
        if op.phase is not Phase.FORWARD:
            stage_of[op.name] = _stage_of_origin(graph, op, stage_of)
        elif op.layer is not None:
            stage_of[op.name] = place_of_layer[op.layer]
            seen_layer = True
        else:
            stage_of[op.name] = count - 1 if seen_layer else 0
        stage_of[op.name] = pinned.get(op.name, stage_of[op.name])
        for producer in (graph.producer[name] for name in op.inputs if name in graph.producer):
            if op_definition(producer.kind).repeats:
                stage_of.setdefault(producer.name, stage_of[op.name])
    for op in reversed(graph.ops):
        if op.name not in stage_of:  # a repeat that a repeat reads, or nobody
            around = (*graph.consumers[op.outputs[0]], *(graph.producer[n] for n in op.inputs if n in graph.producer))
            stage_of[op.name] = next((stage_of[other.name] for other in around if other.name in stage_of), 0)
    if pinned:
        _check_order(graph, stage_of)
    return stage_of


def _pinned_stages(graph: Graph, pins: Mapping[str, int], count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    problems: list[InputError] = []
    for pattern, stage in pins.items():
        where = f"[stage] {pattern!r}"
        if not 0 <= stage < count:
            problems.append(InputError("no such stage", where=where, got=stage, expected=f"0 to {count - 1}"))
        matches = [op.name for op in graph.ops if fnmatchcase(op.name, pattern)]
        if not matches:
            hint = did_you_mean(pattern, graph.by_name)
            problems.append(InputError("a pin matches no op", where=where, hint=hint))
        found.update(dict.fromkeys(matches, stage))
    report(problems, where="pins")
    return found


def _check_order(graph: Graph, stage_of: Mapping[str, int]) -> None:
    """Forward, data flows to the same or a later stage: the order of chunks on a stage relies on it."""
    problems = []
    for op in graph.ops:
        for name in op.inputs:
            producer = graph.producer.get(name)
            if producer is None or producer.phase is not op.phase or op.phase is Phase.UPDATE:
                continue
            before, after = stage_of[producer.name], stage_of[op.name]
            if after != before and (after < before) is (op.phase is Phase.FORWARD):
                problem = InputError(
                    "the pins make a pass go against the pipeline",
                    where=f"[stage] op {op.name}",
                    got=f"stage {after}, reading {name} of stage {before}",
                    hint="pin both, or neither",
                )
                problems.append(problem)
    report(problems, where="pins")


def _stage_of_origin(graph: Graph, op: Op, stage_of: Mapping[str, int]) -> int:
    """Stage of the first op that reads the variable, or of the op of the model, that an op was made for.

    Else, for an op of a layer or an update, that of what it reads; else the first.
    """
    if op.parameter and graph.consumers[op.parameter]:
        return stage_of[graph.consumers[op.parameter][0].name]
    if op.origin:
        return stage_of.get(op.origin, 0)
    follows = op.layer is not None or (op.updates and op.inputs)
    producer = graph.producer.get(op.inputs[0]) if follows else None
    return 0 if producer is None else stage_of.get(producer.name, 0)


def home_of(graph: Graph, stages: Stages, signatures: Assignment, value: str) -> Home | None:
    """Where `value` lives; None for graph inputs, which are loaded wherever they are wanted."""
    if value in stages.homes:
        return stages.homes[value]
    op = deciding_op(graph, value)
    return None if op is None else Home(stages.stage_of[op.name], signatures[op.name].layouts[home_position(op, value)])


def home_position(op: Op, value: str) -> int:
    """Which of the layouts of a signature of `op` is the home of a value that it decides."""
    if value in op.outputs:
        return len(op.inputs) + op.outputs.index(value)
    if value in op.updates:
        return len(op.inputs) + len(op.outputs) + op.updates.index(value)
    return op.inputs.index(value)


def wanted_copies(graph: Graph, stages: Stages, signatures: Assignment) -> dict[Copy, tuple[Op, ...]]:
    """Every (value, stage, layout) that some op reads, with its readers, in canonical order."""
    found: list[tuple[Copy, list[Op]]] = []
    there: dict[tuple[str, int], list[tuple[NdSbp, list[Op]]]] = {}
    """By value and stage: few layouts, which take longer to hash than to compare."""
    for op in graph.ops:
        stage = stages.stage_of[op.name]
        for name, layout in zip(op.inputs, signatures[op.name].inputs, strict=True):
            copies = there.setdefault((name, stage), [])
            for known, readers in copies:
                if known == layout:
                    if readers[-1] is not op:
                        readers.append(op)
                    break
            else:
                copies.append((layout, [op]))
                found.append((Copy(name, stage, layout), copies[-1][1]))
    return {copy: tuple(readers) for copy, readers in found}
