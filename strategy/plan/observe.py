"""Observe: what a measured timeline says about the cost of its acts.

A computation takes from its start to its end. A rendezvous takes from the moment when its last member was there: what
earlier members spent waiting is not its cost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from statistics import fmean, median

from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features, Measurement
from strategy.lowering.exchange_buckets import in_buckets
from strategy.plan.plan import Plan
from strategy.program.program import Program
from strategy.program.timeline import ActRecord, Timeline, by_stream, step_of


def features_by_action(plan: Plan) -> dict[str, Features]:
    """Actor name -> what the cost model knows of its acts."""
    found = in_buckets(plan.priced)
    return {action.name: one for action, one in zip(found.arrangement.actions, found.features, strict=True)}


def observe(
    timeline: Timeline,
    program: Program,
    features: Mapping[str, Features],
    cost: CostModel,
    *,
    source: str,
    steps: Collection[int],
) -> list[Measurement]:
    """One row per distinct features, over all acts of the given steps (the first ones warm caches and pages).

    An act of several parts says what they take together: each is given its share of that by `cost`.

    The row is the mean, not the median: a step is the sum of its acts, interruptions included, and so is its mean.
    """
    seconds: dict[Features, list[float]] = {}
    for actor, elapsed_ns in _durations(timeline, program, steps):
        found = features[program.actors[actor].name]
        for part, share in _shares(found, cost):
            seconds.setdefault(part, []).append(share * elapsed_ns / 1e9)
    rows = [Measurement(found, max(fmean(times), 1e-9), len(times), source) for found, times in seconds.items()]
    return sorted(rows, key=lambda row: (row.features.kind, row.features.space, row.features.nbytes, row.features.flop))


def _shares(features: Features, cost: CostModel) -> list[tuple[Features, float]]:
    """The parts of an act, each with its share of the price."""
    parts = features.parts or (features,)
    prices = [max(cost.seconds(part) - cost.act_overhead_s, 1e-12) for part in parts]
    return [(part, price / sum(prices)) for part, price in zip(parts, prices, strict=True)]


def _durations(timeline: Timeline, program: Program, steps: Collection[int]) -> Iterable[tuple[int, int]]:
    meetings: dict[tuple[int, int], list[ActRecord]] = {}
    for record in timeline.records:
        if step_of(timeline, record) not in steps:
            continue
        number = program.actors[record.actor].rendezvous
        if number is None:
            yield record.actor, record.end_ns - record.start_ns
        else:
            meetings.setdefault((number, record.number), []).append(record)
    for members in meetings.values():
        begun = max(record.start_ns for record in members)
        yield members[0].actor, max(record.end_ns for record in members) - begun


def act_overhead_s(timeline: Timeline, *, longest_s: float = 100e-6) -> float:
    """Median pause between two acts of one stream that follow at once: what the runtime spends per act.

    Pauses beyond `longest_s` are waiting, not overhead.
    """
    pauses = []
    for records in by_stream(timeline):
        for before, after in pairwise(records):
            pause = (after.start_ns - before.end_ns) / 1e9
            if 0 <= pause <= longest_s:
                pauses.append(pause)
    return median(pauses) if pauses else 0.0
