"""Merged order: the chunks of all stages in one order that a single loop can follow, packed into arrays.

A *leg* is what all micro-batches do on one stage, in one phase and on one lap. The merged order lists legs; the n-th
entry of a leg is its n-th micro-batch. The order of every stage in it is that of `chunk_order`, and no chunk stands
before the one whose message it waits for: it is the order in which chunks begin where each takes one unit of time.

Once the pipeline is full that order repeats: one micro-batch more, or as many as there are stages under interleaved,
is one more turn of the same entries. So the order of ten thousand micro-batches is that of a few rounds of the
pipeline, whose middle has more turns. GPipe's has two middles, and needs no such order (see `makespan`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InternalError
from strategy.layout.in_flight import PHASES, unit_run
from strategy.layout.schedule import Schedule, at_position

IntArray = npt.NDArray[np.int64]
ROUNDS = 4
"""Micro-batches, per stage, whose order shows what repeats."""
MIDDLE = 1
"""The section that repeats."""


class MergedOrder(NamedTuple):
    """The chunks of a step; N entries in three sections, L legs, each with as many micro-batches as there are.

    Leg `place` is the forward pass at that place along the pipeline, P places in all; P + place the backward pass; 2 P
    + place the gradients of weights, where the schedule sets them apart.
    """

    legs: IntArray  # (N,) the entries, those that repeat once
    section_at: IntArray  # (4,) where in `legs` each section begins
    turns: IntArray  # (3,) how often each is run
    stage: IntArray  # (L,)
    lap: IntArray  # (L,)
    source: IntArray  # (L,) the leg whose messages it waits for; L where there is none
    width: int  # a power of two; fewer messages are under way from a leg at any time


def merged_order(schedule: Schedule, stages: int, num_micro_batches: int, laps: int = 1) -> MergedOrder:
    """The merged order of a schedule that `schedule_problem` has nothing against; not of GPipe."""
    step = stages if schedule is Schedule.INTERLEAVED else 1
    most = ROUNDS * stages
    left_out = max(0, -(-(num_micro_batches - most) // step))
    found = _merged(schedule, stages, num_micro_batches - left_out * step, laps, step)
    if not left_out:
        return found
    if found.turns[MIDDLE] < 2:
        raise InternalError(f"the order of {schedule} on {stages} stages does not repeat")
    turns = found.turns.copy()
    turns[MIDDLE] += left_out
    return found._replace(turns=turns)


@lru_cache(maxsize=1024)
def _merged(schedule: Schedule, stages: int, m: int, laps: int, step: int) -> MergedOrder:
    """The order, whose middle is what each further `step` micro-batches run once more."""
    begins, places = unit_run(schedule, stages, m, laps).begins, stages * laps
    at = [at_position(schedule, stages, place) for place in range(places)] * (len(begins) // places)
    numbers = {place: number for number, place in enumerate(at[:places])}
    times = np.zeros((len(at), m), np.int64)
    for leg, found in begins.items():
        times[PHASES.index(leg.phase) * places + numbers[leg.stage, leg.lap]] = found
    stage, lap = (np.array(each, np.int64) for each in zip(*at, strict=True))
    entries = np.repeat(np.arange(len(at)), m)
    legs = entries[np.lexsort((stage[entries], times.ravel()))]
    source = np.array([_source(leg, places, at) for leg in range(len(at))], np.int64)
    begin, turns = _repeated(legs, len(at), step)
    length = step * len(at)
    width = _width(legs, source)
    legs = np.delete(legs, np.s_[begin + length : begin + length * turns])
    section_at = np.array([0, begin, begin + min(turns, 1) * length, legs.size])
    return MergedOrder(legs, section_at, np.array([1, turns, 1]), stage, lap, source, width)


def _source(leg: int, places: int, at: list[tuple[int, int]]) -> int:
    """The leg that sends to a leg from another stage; there is no message on a stage, whose order says it all."""
    phase, place = divmod(leg, places)
    before = place + (-1 if phase == 0 else 1)
    if phase > 1 or not 0 <= before < places or at[before][0] == at[place][0]:
        return len(at)
    return phase * places + before


def _repeated(legs: IntArray, num_legs: int, step: int) -> tuple[int, int]:
    """(begin, turns) of the longest stretch in which every leg has `step` micro-batches, over and over."""
    length = step * num_legs
    if length >= legs.size:
        return legs.size, 0
    ends = np.flatnonzero(np.append(legs[:-length] != legs[length:], True))
    begins = np.append(0, ends[:-1] + 1)
    for run in np.argsort(begins - ends, kind="stable"):
        counts = np.bincount(legs[begins[run] : begins[run] + length], minlength=num_legs)
        if (counts == step).all():
            return int(begins[run]), int(ends[run] - begins[run]) // length + 1
    return legs.size, 0


def _width(legs: IntArray, source: IntArray) -> int:
    """A power of two above the most messages of a leg that are under way."""
    most = 1
    for target, sender in enumerate(source):
        if sender < source.size:
            sent, taken = np.flatnonzero(legs == sender), np.flatnonzero(legs == target)
            most = max(most, int((np.arange(1, sent.size + 1) - np.searchsorted(taken, sent)).max()))
    return 1 << most.bit_length()
