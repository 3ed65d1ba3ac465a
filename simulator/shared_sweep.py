"""The sweep of programs whose acts share resources: from event to event, like the event engine, but compiled.

A node starts when all that it waits for has ended, waits its latency, and then moves its bytes through resources that
it shares with whatever else is there (`resources`). The arithmetic is the event engine's, in whole numbers, and so are
the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.act_graph import ActGraph, Integers, SweepRefusal, grouped
from simulator.resources import SHARES
from simulator.sweep import Times
from strategy.compiled import compiled

LARGEST_LEVEL = 2**55
"""Level units beyond which products of them may not fit 64 bits: 14 hours of one resource."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedTimes:
    """Times, and what the event engine says beside them: by resource, in order of `ActGraph.resources`."""

    times: Times
    busy_ns: Integers
    num_events: int


def shared_sweep(graph: ActGraph, latency_ns: Integers) -> SharedTimes:
    """The times of all nodes that wait so many nanoseconds each before they move their bytes.

    Raises:
        SweepRefusal: a resource is busy for too long to count in 64 bits.
    """
    acts = np.bincount(graph.leader, minlength=len(graph.first_use) - 1)
    users = np.repeat(np.arange(len(graph.first_use) - 1), np.diff(graph.first_use))
    total = np.bincount(graph.user_of, weights=graph.units * acts[users], minlength=len(graph.resources))
    if total.max(initial=0) > LARGEST_LEVEL:
        name = graph.resources[int(total.argmax())]
        raise SweepRefusal(f"too many bytes for the sweep: resource {name}", hint="the event engine takes it")
    first_wait = graph.first_wait[graph.first_act]
    first, edges = grouped(graph.waits.astype(np.int64), graph.num_nodes)
    waiting = np.repeat(np.arange(graph.num_nodes, dtype=np.int32), np.diff(first_wait))
    start_ns, end_ns = np.empty_like(latency_ns), np.empty_like(latency_ns)
    busy_ns = np.zeros(len(graph.resources), dtype=np.int64)
    num_events = _run(
        np.diff(first_wait),
        first,
        waiting[edges],
        latency_ns,
        graph.leader,
        graph.first_use,
        graph.user_of,
        graph.units,
        np.concatenate(([0], np.cumsum(np.bincount(graph.user_of, minlength=len(graph.resources))))),
        int((np.diff(graph.first_use) * acts).sum()),
        start_ns,
        end_ns,
        busy_ns,
    )
    return SharedTimes(Times(start_ns, end_ns), busy_ns, num_events)


@compiled
def _run(
    missing: Integers,
    first: Integers,
    followers: NDArray[np.int32],
    latency: Integers,
    leader: Integers,
    first_use: Integers,
    user_of: Integers,
    units: Integers,
    room: Integers,
    num_uses: int,
    start_ns: Integers,
    end_ns: Integers,
    busy_ns: Integers,
) -> int:
    """All events in order of time. Of resource r, `room[r]` to `room[r + 1]` are places for acts that move bytes.

    An event is a node whose latency has passed, or -1 - a resource through which the next act is, if nothing changed.
    """
    resources = len(busy_ns)
    level, now_of = np.zeros(resources, dtype=np.int64), np.zeros(resources, dtype=np.int64)
    sharers, announced = np.zeros(resources, dtype=np.int64), np.full(resources, -1, dtype=np.int64)
    target, mover = np.empty(room[-1], dtype=np.int64), np.empty(room[-1], dtype=np.int64)
    pending = np.zeros(len(latency), dtype=np.int32)
    capacity = len(latency) + 2 * num_uses + 1
    times, events = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    ended = np.empty(room[-1] + 1, dtype=np.int64)
    size = num_events = 0
    for node in range(len(latency)):
        if missing[node] == 0:
            start_ns[node] = 0
            size = _push(times, events, size, latency[node], node)
            num_events += 1
    while size:
        now, event = times[0], events[0]
        size = _pop(times, events, size)
        if event >= 0:
            begin, end = first_use[leader[event]], first_use[leader[event] + 1]
            pending[event] = end - begin
            for use in range(begin, end):
                r = user_of[use]
                _advance(r, now, level, now_of, sharers, busy_ns)
                place = room[r] + sharers[r]
                target[place], mover[place] = level[r] + units[use], event
                sharers[r] += 1
                announced[r] = _next_end(r, now, level, sharers, target, room)
                size = _push(times, events, size, announced[r], -1 - r)
                num_events += 1
            count = 0
            if begin == end:
                ended[0] = event
                count = 1
        else:
            r = -1 - event
            if announced[r] != now:
                continue
            _advance(r, now, level, now_of, sharers, busy_ns)
            count, place = 0, room[r]
            while place < room[r] + sharers[r]:
                if target[place] > level[r]:
                    place += 1
                    continue
                node = mover[place]
                sharers[r] -= 1
                last = room[r] + sharers[r]
                target[place], mover[place] = target[last], mover[last]
                pending[node] -= 1
                if pending[node] == 0:
                    ended[count] = node
                    count += 1
            announced[r] = -1
            if sharers[r]:
                announced[r] = _next_end(r, now, level, sharers, target, room)
                size = _push(times, events, size, announced[r], -1 - r)
                num_events += 1
        for i in range(count):
            end_ns[ended[i]] = now
            for k in range(first[ended[i]], first[ended[i] + 1]):
                follower = followers[k]
                missing[follower] -= 1
                if missing[follower] == 0:
                    start_ns[follower] = now
                    size = _push(times, events, size, now + latency[follower], follower)
                    num_events += 1
    return num_events


@compiled
def _advance(r: int, now: int, level: Integers, now_of: Integers, sharers: Integers, busy_ns: Integers) -> None:
    """Let the level of a resource rise until now."""
    if sharers[r]:
        elapsed = now - now_of[r]
        busy_ns[r] += elapsed
        level[r] += elapsed * SHARES // sharers[r]
    now_of[r] = now


@compiled
def _next_end(r: int, now: int, level: Integers, sharers: Integers, target: Integers, room: Integers) -> int:
    """When the next act is through a resource if none joins before, rounded up."""
    nearest = target[room[r]]
    for place in range(room[r] + 1, room[r] + sharers[r]):
        nearest = min(nearest, target[place])
    return int(now - (-(nearest - level[r]) * sharers[r] // SHARES))


@compiled
def _push(times: Integers, events: Integers, size: int, time: int, event: int) -> int:
    """Put an event into a binary heap; gives its new size."""
    place = size
    while place and times[(place - 1) >> 1] > time:
        parent = (place - 1) >> 1
        times[place], events[place] = times[parent], events[parent]
        place = parent
    times[place], events[place] = time, event
    return size + 1


@compiled
def _pop(times: Integers, events: Integers, size: int) -> int:
    """Take the first event out of a heap; gives its new size."""
    size -= 1
    time, event, place = times[size], events[size], 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and times[child + 1] < times[child]:
            child += 1
        if times[child] >= time:
            break
        times[place], events[place] = times[child], events[child]
        place = child
    times[place], events[place] = time, event
    return size
