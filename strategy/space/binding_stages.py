"""Binding stages: those whose memory says all that there is to say about memory.

Stages of repeated layers hold the same tensors for the same times under every choice, in as many blocks as there are
micro-batches in flight, which are most on the first. A stage that holds no more than another one, tensor by tensor,
needs no rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from strategy.layout.arrangement import Lifetime, Lifetimes
from strategy.layout.layout import Copy
from strategy.sbp.sbp import NdSbp
from strategy.space.bundles import Bundle
from strategy.space.classes import Classes

Moment = tuple[bool, int]
"""(whether it is the place of an op among those of a stage, that place or the time itself)."""


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What a stage holds: `key` is the same for tensors of the same sizes under every choice; when, and in how many."""

    key: object
    lifetime: Lifetime


def binding_stages(classes: Classes, bundles: Sequence[Bundle], lifetimes: Lifetimes) -> frozenset[int]:
    """The stages whose memory has to be bounded.

    Args:
        classes: who decides what values hold where they live.
        bundles: of the copies.
        lifetimes: of the values.
    """
    graph, stages = classes.space.graph, classes.space.stages
    times: dict[int, list[int]] = {stage: [] for stage in range(len(stages.placements))}
    for time, op in enumerate(graph.ops):
        times[stages.stage_of[op.name]].append(time)
    tenancies: dict[int, list[Tenancy]] = {stage: [] for stage in times}
    for name, stage, writer in classes.homes():
        value = graph.values[name]
        tenancies[stage].append(Tenancy((writer.identity, value.spec, value.space), lifetimes.home(name, stage)))
    wanted = _wanted(bundles)
    for bundle in bundles:
        source = None if bundle.writer is None else bundle.writer.identity
        wants = tuple((reader.index, wanted[reader.kind, positions]) for reader, positions in bundle.readers)
        for name, home, stage in bundle.instances:
            way = None if bundle.writer is None else classes.space.converter.way(home, stage)
            for at, role, lifetime in copy_lifetimes(lifetimes, name, home, stage):
                key = source, wants, bundle.spec, way, role, graph.values[name].space
                tenancies[at].append(Tenancy(key, lifetime))
    return fullest_stages(tenancies, times, lifetimes.horizon)


def fullest_stages(
    tenancies: Mapping[int, Sequence[Tenancy]], times: Mapping[int, Sequence[int]], horizon: int
) -> frozenset[int]:
    """The stages that hold more of something than every stage that is otherwise alike.

    Args:
        tenancies: all that a stage may hold, in an order that is the same on alike stages.
        times: when the ops of a stage are, ascending.
        horizon: the end of time.
    """
    alike: dict[object, list[tuple[int, tuple[int, ...]]]] = {}
    for stage, held in tenancies.items():
        place = {time: place for place, time in enumerate(times[stage])}
        shape = tuple((one.key, *_moments(one.lifetime, place, horizon)) for one in held)
        alike.setdefault(shape, []).append((stage, tuple(one.lifetime.blocks for one in held)))
    return frozenset(stage for group in alike.values() for stage in _most(group))


def copy_lifetimes(lifetimes: Lifetimes, value: str, home: int, stage: int) -> Iterator[tuple[int, str, Lifetime]]:
    """(stage, what for, lifetime) of all that any conversion to a copy of a value may hold.

    Args:
        lifetimes: of the values.
        value: what is copied.
        home: the stage that it lives on; -1 where it is loaded.
        stage: the stage of the copy.
    """
    arrives = home != stage
    yield stage, "copied", lifetimes.copy(value, stage, arrives=arrives)
    if home < 0:
        return
    copy, there = Copy(value, stage, ()), lifetimes.conversion_time(value, stage)
    yield stage, "step", lifetimes.intermediate(copy, there, arrives=False, departs=False)
    if arrives:
        here = lifetimes.departure_time(value)
        yield stage, "converted", lifetimes.copy(value, stage, arrives=False)
        yield stage, "arrived", lifetimes.intermediate(copy, there, arrives=True, departs=False)
        yield home, "step", lifetimes.intermediate(copy, here, arrives=False, departs=False)
        yield home, "sent", lifetimes.intermediate(copy, here, arrives=False, departs=True)


def _wanted(bundles: Sequence[Bundle]) -> dict[tuple[int, tuple[int, ...]], int]:
    """(kind of a reader, positions) -> a number for the layouts that it wants there under each choice."""
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers: dict[tuple[frozenset[NdSbp], ...], int] = {}
    for bundle in bundles:
        for reader, positions in bundle.readers:
            if (reader.kind, positions) not in found:
                layouts = tuple(frozenset(option.inputs[i] for i in positions) for option in reader.options)
                found[reader.kind, positions] = numbers.setdefault(layouts, len(numbers))
    return found


def _moments(lifetime: Lifetime, place: Mapping[int, int], horizon: int) -> tuple[Moment, Moment]:
    """Begin and end as a stage's own ops count time, which is how it differs between alike stages."""
    if (lifetime.begin, lifetime.end) == (0, horizon):
        return (False, 0), (False, horizon)
    begin, last = lifetime.begin, lifetime.end - 1
    return (begin in place, place.get(begin, begin)), (last in place, place.get(last, last))


def _most(group: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[int]:
    """The stages of a group with more blocks of something than each that is taken already; the first of equals."""
    taken: list[tuple[int, ...]] = []
    for stage, blocks in sorted(group, key=lambda pair: (-sum(pair[1]), pair[0])):
        if not any(all(few <= many for few, many in zip(blocks, other, strict=True)) for other in taken):
            taken.append(blocks)
            yield stage
