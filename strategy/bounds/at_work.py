"""At work: what a part of a template holds for certain while one of its acts runs, beside what others have saved.

    head runs forward            what was saved before | what the act reads | what it writes
    a layer runs backward        what it still reads of the saved | of what came since | what the act writes
                                 as acts before and behind read it, where these read it alike

A moment is the widest that can be told without layouts, whole tensors counted; what is held then depends on them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import numpy as np

from strategy.bounds.point import AT_HEAD, AT_WORK, SAVED, SIZE, WAITING, unit
from strategy.graph.graph import Graph, Op, Phase, act_rate
from strategy.graph.ops import op_definition
from strategy.layout.gradient_exchange import exchanged
from strategy.layout.parameter_gathers import of_parameters
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from strategy.space.short_model import LAYERS, MIDDLE, places_of
from strategy.space.space import Keeping, Kept, Weight

NOTHING = np.zeros(SIZE, np.int64)
NOTHING.flags.writeable = False
Homes = dict[str, Weight]
"""Value -> what a byte counts of where it lives."""
Keeps = dict[str, Kept]
"""Value -> for whom it is kept."""


def count_at_head(graph: Graph, counted: Collection[str], homes: Homes, kept: Keeps) -> None:
    """Count what the last part holds for certain while the widest of its forward acts runs.

    That is what the act reads, as it reads it, and what it writes, unless over what it reads; and, of what is saved for
    the backward pass, what was made before, where all forward acts that read it come no later.
    """
    part_of = places_of(graph)
    widest = _widest(graph, frozenset(name for name in counted if part_of[name] == LAYERS - 1))
    if widest is None:
        return
    at_head, before = unit(AT_HEAD.start), _before(graph, widest)
    read = {name for name in widest.inputs if graph.values[name].rate is Rate.MICRO_BATCH}
    for name, saved in _saved(homes, kept, LAYERS - 1):
        producer = graph.producer.get(name)
        if producer is None or producer.name not in before:
            continue
        readers = {op.name for op in graph.consumers[name] if op.phase is Phase.FORWARD}
        if name in homes:
            homes[name] = homes[name] + at_head
        elif saved.keeping is Keeping.AS_READ and readers <= {*before, widest.name}:
            kept[name] = _also(saved, at_head)
        else:
            continue
        read.discard(name)
    for name in sorted(read):
        if name not in kept and name not in homes and _is_on_device(graph, name):  # else another part's counts it
            kept[name] = Kept(at_head, (widest.name,))
    _count_written(graph, widest, at_head, homes)


def count_at_work(graph: Graph, counted: Collection[str], apart: Collection[str], homes: Homes, kept: Keeps) -> None:
    """Count what a layer between holds for certain while the widest act of its backward pass runs.

    Acts of a pass run in the order of the graph, but for those that are `apart`, which may come later. So at any of
    them there is what was computed in the pass before it, and what was saved, if an act behind it reads that; and what
    it reads itself. What is gathered, or exchanged, counts elsewhere.
    """
    part_of, place = places_of(graph), {op.name: at for at, op in enumerate(graph.ops)}
    acts = [op for op in graph.ops if op.name in counted and part_of[op.name] == MIDDLE and op.phase is Phase.BACKWARD]
    moved = {*of_parameters(graph), *exchanged(graph)}
    acts = [op for op in acts if op.name not in apart and act_rate(graph, op) is Rate.MICRO_BATCH]
    acts = [op for op in acts if moved.isdisjoint(op.outputs)]
    made = {name: op for op in acts for name in op.outputs}
    last = {name: _last_read(graph, name, part_of, place) for name in (*made, *dict(_saved(homes, kept, MIDDLE)))}
    work = _fullest(graph, acts, made, last, place)
    if work is None:
        return
    at_work, now = unit(AT_WORK.start), place[work.name]
    for name, saved in list(_saved(homes, kept, MIDDLE)):
        if last[name] > now and name in homes:
            homes[name] = homes[name] + at_work
        elif saved.keeping is Keeping.AS_READ and all(place[one] >= now for one in (*saved.readers, *saved.first)):
            kept[name] = _also(saved, at_work)
    for name, op in made.items():
        if place[op.name] >= now or last[name] < now or not _is_on_device(graph, name):
            continue
        known, between = kept.get(name), _read_around(graph, name, work, acts, place)
        if known is not None and _is_there(known, now, place):
            kept[name] = replace(known, weight=known.weight + at_work)
        elif known is None and between is not None:
            kept[name] = replace(between, weight=at_work)
        elif last[name] > now:
            homes[name] = homes.get(name, NOTHING) + at_work
    _count_written(graph, work, at_work, homes)


def _read_around(graph: Graph, name: str, work: Op, acts: Collection[Op], place: Mapping[str, int]) -> Kept | None:
    """For whom a value of the same pass is there meanwhile: for the act itself, or for acts before and behind it.

    None if nothing has read it before: then it is where it lives, or as acts behind read it.
    """
    if name in work.inputs:
        return Kept(NOTHING, (work.name,))
    readers = {op.name for op in graph.consumers[name]}
    before = [op.name for op in acts if op.name in readers and place[op.name] < place[work.name]]
    behind = [op.name for op in acts if op.name in readers and place[op.name] > place[work.name]]
    if not before or not behind:
        return None
    return Kept(NOTHING, (behind[0],), keeping=Keeping.BOTH, first=(before[-1],))


def _is_there(kept: Kept, now: int, place: Mapping[str, int]) -> bool:
    """Whether what is kept for two readers is there at a time between them."""
    return kept.keeping is Keeping.BOTH and place[kept.first[0]] <= now < place[kept.readers[0]]


def _saved(homes: Homes, kept: Keeps, part: int) -> Iterator[tuple[str, Kept]]:
    """What a part saves of a micro-batch, and for whom."""
    of_part = unit(SAVED.start + part) + unit(WAITING.start + part)
    for name in dict.fromkeys((*kept, *homes)):
        saved = kept.get(name, Kept(homes.get(name, 0), ()))
        if np.any(of_part * saved.weight) or np.any(of_part * saved.first_weight):
            yield name, saved


def _also(kept: Kept, weight: Weight) -> Kept:
    """What counts so, too."""
    first_weight = kept.first_weight + weight if kept.first else 0
    return replace(kept, weight=kept.weight + weight, first_weight=first_weight)


def _count_written(graph: Graph, op: Op, weight: Weight, homes: Homes) -> None:
    """What an act writes, unless over what it reads."""
    specs = [graph.values[op.inputs[at]].spec for at in op_definition(op.kind).in_place]
    for name in op.outputs:
        spec = graph.values[name].spec
        if _is_on_device(graph, name) and not any((spec.shape, spec.dtype) == (one.shape, one.dtype) for one in specs):
            homes[name] = homes.get(name, NOTHING) + weight


def _is_on_device(graph: Graph, name: str) -> bool:
    return graph.values[name].space is Space.DEVICE


def _widest(graph: Graph, among: Collection[str]) -> Op | None:
    """The forward act of every micro-batch that reads and writes most bytes of it, whole tensors counted."""

    def nbytes(op: Op) -> int:
        values = [graph.values[name] for name in {*op.inputs, *op.outputs}]
        return sum(value.spec.nbytes for value in values if value.rate is Rate.MICRO_BATCH)

    acts = [op for op in graph.ops if op.name in among and op.phase is Phase.FORWARD]
    acts = [op for op in acts if act_rate(graph, op) is Rate.MICRO_BATCH]
    return max(acts, key=nbytes, default=None)


def _fullest(
    graph: Graph, acts: Collection[Op], made: Mapping[str, Op], last: Mapping[str, int], place: Mapping[str, int]
) -> Op | None:
    """The first of the acts at which most bytes are there, whole tensors counted, with room where experts have them."""

    def nbytes(op: Op) -> float:
        now = place[op.name]
        there = {
            name for name, until in last.items() if until >= now and (name not in made or place[made[name].name] < now)
        }
        return sum(
            graph.values[name].spec.nbytes * _room(graph, name, op, place, now) for name in there.union(op.outputs)
        )

    return max(acts, key=nbytes, default=None)


def _room(graph: Graph, name: str, work: Op, place: Mapping[str, int], now: int) -> float:
    """For how many times the rows of a value there is likely to be room: for more where experts read or write it."""
    ragged = graph.values[name].spec.ragged
    if ragged is None or ragged.room <= 1:
        return 1.0
    users = [work] if name in work.inputs else [*graph.consumers[name], graph.producer.get(name)]
    by_experts = any(op and place[op.name] <= now and not _routes(graph, op) for op in users)
    return ragged.room if by_experts else 1.0


def _routes(graph: Graph, op: Op) -> bool:
    """Whether an act on rows sends them to experts or back: it reads which those are, and has rows by sample."""
    dtypes = (graph.values[name].spec.dtype for name in op.inputs)
    return any(not (dtype.is_float or dtype.is_code) for dtype in dtypes)


def _last_read(graph: Graph, name: str, part_of: Mapping[str, int], place: Mapping[str, int]) -> int:
    """Where the last act of its own layer stands that reads a value; -1 where none does."""
    readers = [op for op in graph.consumers[name] if part_of[op.name] == MIDDLE and op.phase is not Phase.FORWARD]
    return max((place[op.name] for op in readers), default=-1)


def _before(graph: Graph, op: Op) -> frozenset[str]:
    """All ops that an op needs the results of."""
    found, left = set[str](), [op]
    while left:
        for name in left.pop().inputs:
            producer = graph.producer.get(name)
            if producer is not None and producer.name not in found:
                found.add(producer.name)
                left.append(producer)
    return frozenset(found)
