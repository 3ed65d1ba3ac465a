"""Critical path: a longest path through the chunks of a step, as how often it passes what takes time.

A makespan is the length of the longest path. So the length of any path, a linear function of the times, is a lower
bound of the makespan under all times, and so is the mean of several; that of the critical path is the makespan itself
under its own times. Counts are held in the arrays that the times are in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled
from strategy.layout.makespan import (
    BUSY,
    LONGEST_NS,
    TIMES,
    IntArray,
    PipelineTimes,
    at_both_ends,
    beside_by_leg,
    by_leg,
    crosses_back,
    late_by_leg,
    most_ns,
)
from strategy.layout.merged_order import MergedOrder, merged_order
from strategy.layout.schedule import Schedule, at_position

BoolArray = npt.NDArray[np.bool_]
MOST_CHUNKS = 2**21
"""Through longer steps no path is followed chunk by chunk; what one stage does in a row stands in for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The mean of some paths: how often all together pass everything, and how many they are."""

    counts: PipelineTimes
    number: int


def length_ns(path: PipelineTimes, times: PipelineTimes) -> int:
    """Of a path, or of some together, under times."""
    return sum(int((getattr(path, name) * getattr(times, name)).sum()) for name in TIMES)


def critical_path(schedule: Schedule, num_micro_batches: int, times: PipelineTimes) -> Paths:
    """The longest path; of steps of very many chunks, the longest of those that stay on one stage.

    Times of which a step could not be counted are taken in coarser units.
    """
    m, p, times = num_micro_batches, times.stages, _countable(num_micro_batches, times)
    if schedule is Schedule.GPIPE:
        found = _through_gpipe(m, times)
    elif _chunks(schedule, m, times) <= MOST_CHUNKS:
        found = _followed(schedule, m, times)
    else:
        alone = (_on_one_stage(schedule, m, times, stage) for stage in range(p))
        found = max(alone, key=lambda path: length_ns(path, times))
    return Paths(found, 1)


def _countable(m: int, times: PipelineTimes) -> PipelineTimes:
    bits = (most_ns(m, times) // LONGEST_NS).bit_length()
    return replace(times, **{name: getattr(times, name) >> bits for name in TIMES}) if bits else times


def straight_path(schedule: Schedule, num_micro_batches: int, times: PipelineTimes) -> Paths:
    """The longest of the paths to a stage, through all that it does, and back: found without following chunks.

    The first micro-batch comes to the stage through those before it, and the last one returns through them, unless
    gradients of weights are left for the end. What the last chunk exchanges may end later than what comes after it.
    """
    if schedule is Schedule.GPIPE:
        return critical_path(schedule, num_micro_batches, times)
    times = _countable(num_micro_batches, times)
    m, splits = num_micro_batches, schedule.splits_backward
    forward, back = times.forward_ns[:, 0], (times.backward_ns + times.weight_ns)[:, 0]
    messages = [each[: times.stages - 1] for each in (times.forward_message_ns, times.backward_message_ns)]
    fill, drain = (np.append(0, np.cumsum(one[:-1] + way)) for one, way in zip((forward, back), messages, strict=True))
    own = m * (times.forward_ns + times.backward_ns + times.weight_ns).sum(1)
    late = np.cumsum(np.append(0, times.late_ns[1:]))
    last = (times.weight_ns if splits else times.backward_ns + times.weight_ns)[:, 0]
    busy = (times.weight_busy_ns if splits else times.backward_busy_ns + times.weight_busy_ns)[:, 0]
    exchanged = busy + times.exchange_ns[:, 0] + times.update_ns - last
    after = np.maximum(times.after_ns, exchanged)
    ends = own + fill + (after if splits else drain + late + after[0])
    stage = int(ends.argmax())
    at, _ = _places(schedule, times.stages, times.laps)
    alone = m * (at == stage)
    passed = np.arange(len(at)) < stage
    ahead, behind = alone + passed, alone + passed * (not splits)
    ways = passed[:-1].astype(np.int64)
    moves = {"forward_message_ns": ways, "backward_message_ns": ways * (not splits)}
    moves["late_ns"] = np.append(0, ways[: times.stages - 1]) * (not splits)
    found = _path(schedule, times, (ahead, behind, behind), moves, 0, stage if splits else 0)
    return Paths(_by_what_is_beside(schedule, times, found), 1)


@lru_cache(maxsize=64)
def even_paths(schedule: Schedule, stages: int, laps: int, num_micro_batches: int, overlaps: bool) -> Paths:
    """Paths that together pass all stages about alike: from the begin of each to its end where it is twice as slow."""
    chunks, step = np.ones((stages, laps), np.int64), np.zeros(stages, np.int64)
    times = PipelineTimes.of_passes(chunks, chunks, chunks, overlaps=overlaps)
    total = _chunks(schedule, num_micro_batches, times)
    found = []
    for stage in range(stages):
        if total * stages > MOST_CHUNKS and schedule is not Schedule.GPIPE:
            found.append(_on_one_stage(schedule, num_micro_batches, times, stage))
            continue
        slower, ends = chunks.copy(), step.copy()
        slower[stage] = 2
        ends[stage] = 6 * total  # no path from elsewhere, or to elsewhere, is as long
        one = PipelineTimes.of_passes(slower, slower, slower, overlaps=overlaps)
        one = replace(one, before_ns=ends, after_ns=ends)
        found.append(critical_path(schedule, num_micro_batches, one).counts)
    together = {name: sum(getattr(path, name) for path in found) for name in TIMES}
    return Paths(replace(times, **together), stages)


def _chunks(schedule: Schedule, m: int, times: PipelineTimes) -> int:
    return m * times.stages * times.laps * (3 if schedule.splits_backward else 2)


def _on_one_stage(schedule: Schedule, m: int, times: PipelineTimes, stage: int) -> PipelineTimes:
    """All that one stage does, in a row."""
    own = m * (_places(schedule, times.stages, times.laps)[0] == stage)
    return _path(schedule, times, (own, own, own), {}, stage, stage)


def _followed(schedule: Schedule, m: int, times: PipelineTimes) -> PipelineTimes:
    """Back from the last chunk to end, from each chunk to the one that it waited for."""
    order = merged_order(schedule, times.stages, m, times.laps)
    lasts, messages = by_leg(order, schedule, times)
    begin, end = order.section_at[1:3]
    legs = np.concatenate([order.legs[:begin], np.tile(order.legs[begin:end], order.turns[1]), order.legs[end:]])
    (late,) = late_by_leg(order, times)
    (gathered,), (beside,), (exchange,) = beside_by_leg(order, schedule, times)
    passed, sent, sent_last, over, gathers, beside_it, exchanges = (np.zeros_like(order.stage) for _ in range(7))
    ends, once = np.zeros(3, np.int64), (times.before_ns, times.after_ns, times.update_ns)
    _follow(
        *(order, legs, lasts[0], messages[0], late, gathered, beside, exchange, times.overlaps, *once),
        *(passed, sent, sent_last, over, gathers, beside_it, exchanges, ends),
    )
    by_phase = passed.reshape(-1, times.stages * times.laps)
    forward, backward = sent.reshape(by_phase.shape)[:2]
    moves = {"forward_message_ns": forward[:-1], "backward_message_ns": backward[1:]}
    moves["late_ns"] = np.zeros_like(times.late_ns)
    stage = order.stage[: len(forward)]
    np.add.at(moves["late_ns"], stage, sent_last.reshape(by_phase.shape)[1] * crosses_back(stage))
    found = _path(schedule, times, (by_phase[0], by_phase[1], by_phase[-1]), moves, *ends[:2])
    at, of_lap = _places(schedule, times.stages, times.laps)
    begins, left = gathers[: len(at)], exchanges[-len(at) :]
    beside_phase = beside_it.reshape(by_phase.shape)
    found.forward_busy_ns[at, of_lap], found.backward_busy_ns[at, of_lap] = beside_phase[:2]
    found.weight_busy_ns[at, of_lap] = beside_phase[-1]
    found.exchange_ns[at, of_lap] = left
    if begins.any():
        found.before_ns[:] = 0
        found.gathered_ns[at, of_lap] = begins
    if not times.overlaps:  # a message keeps its sender busy, whatever that waited for before its end
        ahead, back = over.reshape(by_phase.shape)[:2]
        found.forward_message_ns[:] = ahead[:-1] * (at[:-1] != at[1:])
        found.backward_message_ns[:] = back[1:] * (at[:-1] != at[1:])
    if ends[2]:
        found.after_ns[:], found.update_ns[ends[1]] = 0, 1
    return found


def _by_what_is_beside(schedule: Schedule, times: PipelineTimes, path: PipelineTimes) -> PipelineTimes:
    """A path from the first chunk of a stage on its first lap to its last on that, or by what is beside these."""
    first, last = int(path.before_ns.argmax()), int(path.after_ns.argmax())
    if times.gathered_ns[first, 0] > times.before_ns[first] + times.forward_ns[first, 0]:
        path.before_ns[first], path.gathered_ns[first, 0] = 0, 1
        path.forward_ns[first, 0] -= 1
    passes = ("weight_ns",) if schedule.splits_backward else ("backward_ns", "weight_ns")
    busy = sum(int(getattr(times, BUSY[name])[last, 0]) for name in passes)
    exchanged = busy + times.exchange_ns[last, 0] + times.update_ns[last]
    if exchanged > times.after_ns[last] + _last_ns(schedule, times, last):
        path.after_ns[last], path.update_ns[last] = 0, 1
        path.exchange_ns[last, 0] = 1
        if last and not times.overlaps and not schedule.splits_backward:
            path.backward_message_ns[last - 1] -= 1
        for name in passes:
            getattr(path, name)[last, 0] -= 1
            getattr(path, BUSY[name])[last, 0] = 1
    return path


def _last_ns(schedule: Schedule, times: PipelineTimes, stage: int) -> int:
    """The last chunk of a stage on its first lap, with the message that keeps it busy."""
    if schedule.splits_backward:
        return int(times.weight_ns[stage, 0])
    message = times.backward_message_ns[stage - 1] if stage and not times.overlaps else 0
    return int(times.backward_ns[stage, 0] + times.weight_ns[stage, 0] + message)


def _path(
    schedule: Schedule,
    times: PipelineTimes,
    chunks: tuple[IntArray, IntArray, IntArray],
    moves: Mapping[str, IntArray],
    first: int,
    last: int,
) -> PipelineTimes:
    """A path by its chunks of each phase, by place, the messages that it follows, and the stages of its ends.

    Those of last chunks are late. A message that keeps its sender busy is passed with the chunk that sends it.
    """
    found = {name: np.zeros_like(getattr(times, name)) for name in TIMES}
    stage, lap = _places(schedule, times.stages, times.laps)
    for name, counts in zip(("forward_ns", "backward_ns", "weight_ns"), chunks, strict=True):
        found[name][stage, lap] = counts
    if times.overlaps:
        found.update(moves)
    else:
        crosses = (stage[:-1] != stage[1:]).astype(np.int64)
        found["forward_message_ns"] = chunks[0][:-1] * crosses
        found["backward_message_ns"] = chunks[1][1:] * crosses
        found["late_ns"] = moves.get("late_ns", found["late_ns"])
    found["before_ns"][first] = 1
    found["after_ns"][last] = 1
    return PipelineTimes(**found, overlaps=times.overlaps)


@lru_cache(maxsize=256)
def _places(schedule: Schedule, stages: int, laps: int) -> tuple[IntArray, IntArray]:
    """The stage and the lap of every place."""
    stage, lap = np.array([at_position(schedule, stages, place) for place in range(stages * laps)], np.int64).T
    return stage, lap


def _through_gpipe(m: int, times: PipelineTimes) -> PipelineTimes:
    """Both passes are tandems, the second one of which begins on every stage when the first one has ended there."""
    stages = times.stages
    forward, backward = times.forward_ns[:, 0], (times.backward_ns + times.weight_ns)[:, 0]
    in_time = np.zeros_like(times.late_ns)
    before, after = at_both_ends(times)
    ahead = _tandem(m, before, forward, times.forward_message_ns, in_time, times.overlaps)
    turned = np.array([end for end, _, _ in ahead[::-1]])
    late = times.late_ns[::-1]
    back = _tandem(m, turned, backward[::-1], times.backward_message_ns[::-1], late, times.overlaps)
    last = max(range(stages), key=lambda stage: back[stages - 1 - stage][0] + int(after[stage]))
    _, turn, slow_back = back[stages - 1 - last]
    _, first, slow_ahead = ahead[stages - 1 - turn]
    turn, slow_back = stages - 1 - turn, stages - 1 - slow_back
    counts = np.zeros((2, stages), np.int64)
    counts[0, first : turn + 1] = counts[1, last : turn + 1] = 1
    moves = {"forward_message_ns": counts[0, :-1].copy(), "backward_message_ns": counts[1, 1:].copy()}
    moves["forward_message_ns"][turn:] = 0
    moves["backward_message_ns"][:last] = 0
    moves["late_ns"] = np.zeros_like(times.late_ns)
    moves["late_ns"][last + 1 : slow_back + 1] = 1
    counts[0, slow_ahead] += m - 1
    counts[1, slow_back] += m - 1
    found = _path(Schedule.GPIPE, times, (counts[0], counts[1], counts[1]), moves, first, last)
    return _by_what_is_beside(Schedule.GPIPE, times, found)


def _tandem(
    m: int, begins: IntArray, lasts: IntArray, messages: IntArray, late: IntArray, overlaps: bool
) -> Sequence[tuple[int, int, int]]:
    """(when it ends, on which stage the longest path to there begins, where it stays) of every stage."""
    ways = [0, *np.cumsum(lasts[:-1] + messages).tolist()]
    busy = (lasts + (0 if overlaps else np.append(messages, 0))).tolist()
    later = [0, *np.cumsum(late[:-1]).tolist()]
    found = [(-1, 0, 0)] * len(busy)
    for first, begin in enumerate(begins.tolist()):
        slowest = first
        for stage in range(first, len(busy)):
            slowest = max(slowest, stage, key=lambda turn: (m - 1) * busy[turn] - later[turn])
            end = begin + ways[stage] - ways[first] + busy[stage] + (m - 1) * busy[slowest]
            end += later[stage] - later[slowest]
            found[stage] = max(found[stage], (end, first, slowest), key=lambda path: path[0])
    return found


@compiled
def _advance(
    order: MergedOrder,
    legs: IntArray,
    last: IntArray,
    message: IntArray,
    late: IntArray,
    gathered: IntArray,
    beside: IntArray,
    exchange: IntArray,
    overlaps: bool,
    free: IntArray,
    latest: IntArray,
    exchanged: IntArray,
    latest_exchange: IntArray,
    waited_for: IntArray,
    waits: BoolArray,
    is_last: BoolArray,
    waits_for_gathers: BoolArray,
    in_row: IntArray,
    held_up_by: IntArray,
) -> None:
    """Runs all chunks, and writes what each waited for, and when every stage is free and has exchanged.

    A chunk waits for another one (`waited_for`), by a message if it `waits`; or for gathers; or until what goes on
    beside the chunk `held_up_by` is over. `in_row` is the chunk with which that began that goes on in a row beside
    others; -1 where there is none.
    """
    stage, source = order.stage, order.source
    mask, number = order.width - 1, legs.size // stage.size
    arrives = np.zeros((stage.size + 1, order.width), np.int64)  # the last row is that of no message
    sender = np.full((stage.size + 1, order.width), -1, np.int64)
    counts = np.zeros(stage.size, np.int64)
    began = np.full(free.size, -1, np.int64)
    taken = np.zeros(free.size, np.int64)
    taken_of = np.full(free.size, -1, np.int64)
    for entry in range(legs.size):
        leg = legs[entry]
        s, slot = stage[leg], counts[leg] & mask
        counts[leg] += 1
        is_last[entry] = counts[leg] == number
        arrived = arrives[source[leg], slot]
        waits[entry] = arrived > free[s]
        waited_for[entry] = sender[source[leg], slot] if waits[entry] else latest[s]
        begun_at = max(free[s], arrived)
        ended = begun_at + last[leg]
        if counts[leg] == 1 and gathered[leg] > ended:
            ended = gathered[leg]
            waits_for_gathers[entry] = True
        exchanges_now = is_last[entry] and exchange[leg] >= 0
        if taken[s] > ended:
            ended = taken[s]
            held_up_by[entry], waits_for_gathers[entry] = taken_of[s], False
        if beside[leg] and exchanged[s] > begun_at:
            exchanged[s] += beside[leg]
            in_row[entry] = began[s]
            taken[s], taken_of[s] = exchanged[s], entry
        elif exchanges_now:
            if begun_at + beside[leg] > exchanged[s] or began[s] < 0:
                exchanged[s] = begun_at + beside[leg]
                began[s] = entry
            in_row[entry] = began[s]
        if exchanges_now:
            exchanged[s] += exchange[leg]
            latest_exchange[s] = entry
        arrives[leg, slot] = ended + message[leg] + (late[leg] if is_last[entry] else 0)
        sender[leg, slot] = entry
        latest[s] = entry
        free[s] = ended if overlaps else ended + message[leg]


@compiled
def _follow(
    order: MergedOrder,
    legs: IntArray,
    last: IntArray,
    message: IntArray,
    late: IntArray,
    gathered: IntArray,
    beside: IntArray,
    exchange: IntArray,
    overlaps: bool,
    before: IntArray,
    after: IntArray,
    update: IntArray,
    passed: IntArray,
    sent: IntArray,
    sent_last: IntArray,
    over: IntArray,
    gathers: IntArray,
    moves: IntArray,
    exchanges: IntArray,
    ends: IntArray,
) -> None:
    """Writes how many chunks of every leg the longest path passes, whose messages it follows, and where it ends.

    `sent_last` are those of the messages that are of the last chunk of their leg; `over` is how many chunks end on the
    path, whatever they waited for; `gathers` is the leg that the path begins behind the gathers of, `moves` and
    `exchanges` what it passes beside chunks. The last of `ends` says whether an exchange ends it.
    """
    stage, free = order.stage, before.copy()
    latest = np.full(free.size, -1, np.int64)
    exchanged = np.zeros(free.size, np.int64)
    latest_exchange = np.full(free.size, -1, np.int64)
    waited_for = np.empty(legs.size, np.int64)
    waits = np.empty(legs.size, np.bool_)
    is_last = np.zeros(legs.size, np.bool_)
    waits_for_gathers = np.zeros(legs.size, np.bool_)
    in_row = np.full(legs.size, -1, np.int64)
    held_up_by = np.full(legs.size, -1, np.int64)
    _advance(
        order,
        legs,
        last,
        message,
        late,
        gathered,
        beside,
        exchange,
        overlaps,
        free,
        latest,
        exchanged,
        latest_exchange,
        waited_for,
        waits,
        is_last,
        waits_for_gathers,
        in_row,
        held_up_by,
    )
    longest = np.int64(-1)
    for s in range(free.size):
        if free[s] + after[s] > longest:
            longest = free[s] + after[s]
            ends[1], ends[2] = s, 0
        if exchanged[s] + update[s] > longest:
            longest = exchanged[s] + update[s]
            ends[1], ends[2] = s, 1
    entry = latest_exchange[ends[1]] if ends[2] else latest[ends[1]]
    by_exchange = ends[2] == 1
    while entry >= 0:
        s = stage[legs[entry]]
        ends[0] = s
        over[legs[entry]] += not by_exchange
        if by_exchange or held_up_by[entry] >= 0:
            over_at = entry if by_exchange else held_up_by[entry]
            first = in_row[over_at]
            for other in range(first, over_at + 1):
                if in_row[other] == first and stage[legs[other]] == s:
                    moves[legs[other]] += 1
                    is_over = other < over_at or by_exchange
                    exchanges[legs[other]] += is_last[other] and exchange[legs[other]] >= 0 and is_over
            entry, by_exchange = first, False
        elif waits_for_gathers[entry]:
            gathers[legs[entry]] = 1
            break
        else:
            passed[legs[entry]] += 1
        if waits[entry]:
            sent[legs[waited_for[entry]]] += 1
            sent_last[legs[waited_for[entry]]] += is_last[waited_for[entry]]
        entry = waited_for[entry]
