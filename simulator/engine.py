"""The event engine: the actor protocol under a virtual clock, compiled.

At each instant all acts that end there end first; then every stream that they woke starts what the protocol
allows. Acts of a stream are serial. A rendezvous starts when each member is at the head of its stream with its
credits, and ends for all of them at once: its latency is its members' largest, its demands are the sum of theirs.
An act first waits its latency, then moves its bytes (`resources` says how acts share).

What is done at one instant is the same in any order, so times depend on nothing but the program. The heap holds an
event per leader whose act waits its latency, and one per resource through which something moves: when the next of its
acts is through if none joins before.

The tests hold it against the reference engine (`reference`), which drives `strategy.program.protocol` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from simulator.acts import Acts, Integers, timeline_of
from simulator.conservation import check_conservation
from simulator.machine import Machine, Records, machine
from strategy.base.compiled import in_place
from strategy.base.errors import InternalError
from strategy.program.program import Program
from strategy.program.protocol import admit
from strategy.program.timeline import Timeline

Jitter = Callable[[Integers, Integers], Integers]
"""(actors, numbers of their acts) -> extra nanoseconds of each, not negative."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What happened in virtual time.

    `lower_bound_ns` bounds the makespan from below: the busiest stream or resource, which takes `busiest_ns`, or the
    longest chain of acts that need each other's data, share a stream or meet, each at its time alone.
    """

    program: Program
    acts: Acts
    lower_bound_ns: int
    busiest_ns: int
    resource_busy_ns: Mapping[str, int]
    num_events: int

    @property
    def timeline(self) -> Timeline:
        """The acts as records; made anew each time."""
        return timeline_of(self.program, self.acts)


def run(program: Program, steps: int, *, jitter: Jitter | None = None) -> SimulatedRun:
    """Run `steps` steps in virtual time.

    Args:
        program: the program; it need not be admitted before.
        steps: how many steps, at least one.
        jitter: adds to the latency of each act.

    Raises:
        DeadlockError: the program hangs; names the cycle of waits.
        PlanError: it is inconsistent, or takes too long to count.
        InternalError: a law of conservation does not hold, which is a bug.
    """
    made = machine(program, steps)
    actors, streams = made.actors, made.streams
    counts = actors["acts"]
    extra_ns = np.zeros(0, dtype=np.int64)
    if jitter is not None:
        actor = np.repeat(np.arange(len(actors)), counts)
        extra_ns = np.asarray(jitter(actor, np.arange(len(actor)) - actors["first_act"][actor]), dtype=np.int64)
    first = np.concatenate((streams["act"], [counts.sum()]))
    acts = Acts(steps, first, *(np.empty(first[-1], dtype=np.int64) for _ in range(5)))
    num_events = _run(made, extra_ns, acts.actor, acts.number, acts.start_ns, acts.end_ns, acts.ready_ns)
    if (streams["act"] < streams["end_act"]).any():
        admit(program, steps=steps)
        raise InternalError("the engine stops in the middle of a program that is admitted")
    busy_ns = dict(zip(sorted(program.resources), made.resources["busy_ns"].tolist(), strict=True))
    critical_ns = int(streams["end_alone_ns"].max(initial=0))
    stream_ns = check_conservation(program, acts, critical_path_ns=critical_ns, busy_ns=busy_ns)
    busiest_ns = max(stream_ns, max(busy_ns.values(), default=0))
    bound_ns = max(critical_ns, busiest_ns)
    return SimulatedRun(program, acts, bound_ns, busiest_ns, MappingProxyType(busy_ns), num_events)


@in_place
def _run(
    made: Machine,
    extra_ns: Integers,
    act_actor: Integers,
    act_number: Integers,
    act_start_ns: Integers,
    act_end_ns: Integers,
    act_ready_ns: Integers,
) -> int:
    """Go from event to event until nothing can happen any more; gives their number.

    An event is a leader, or, from the number of actors on, a resource.
    """
    actors, reads, writes, streams, turns = made.actors, made.reads, made.writes, made.streams, made.turns
    resources, uses, wakes, members = made.resources, made.uses, made.wakes, made.members
    published, returned, block_end_ns = made.published, made.returned, made.block_end_ns
    heap, place, due = made.heap, made.place, made.due
    mover, left, through, shares = made.mover, made.left, made.through, made.shares
    woken, awake = made.woken, made.awake
    num_woken = len(woken)
    size = num_events = now = 0
    while True:
        for k in range(num_woken):
            awake[woken[k]] = False
            leader = _arrived(woken[k], now, actors, reads, writes, streams, turns, published, returned)
            if leader >= 0:
                size = _announce(
                    heap,
                    place,
                    due,
                    size,
                    leader,
                    now + _begun(leader, now, actors, reads, streams, members, block_end_ns, extra_ns),
                )
                num_events += 1
        num_woken = 0
        if size == 0:
            return num_events
        now = due[heap[0]]
        while size and due[heap[0]] == now:
            event = heap[0]
            size = _taken(heap, place, due, size)
            count = 0
            if event < len(actors):
                begin, end = actors[event].use, actors[event].end_use
                actors[event].pending = end - begin
                for use in range(begin, end):
                    r = uses[use].resource
                    _advance(resources, r, now, left, shares)
                    left[resources[r].room + resources[r].sharers] = uses[use].units
                    mover[resources[r].room + resources[r].sharers] = event
                    resources[r].sharers += 1
                    next_ns = _next_end_ns(resources, r, now, left, shares)
                    size = _announce(heap, place, due, size, len(actors) + r, next_ns)
                    num_events += 1
                if begin == end:
                    through[0] = event
                    count = 1
            else:
                r = event - len(actors)
                _advance(resources, r, now, left, shares)
                count = _leave(resources, r, left, mover, actors, through)
                if resources[r].sharers:
                    next_ns = _next_end_ns(resources, r, now, left, shares)
                    size = _announce(heap, place, due, size, event, next_ns)
                    num_events += 1
            for k in range(count):
                for m in range(actors[through[k]].member, actors[through[k]].end_member):
                    actor = members[m]
                    act = _ended(actor, actors, reads, writes, streams, published, returned, block_end_ns)
                    act_actor[act], act_number[act] = actor, actors[actor].issued - 1
                    act_start_ns[act], act_end_ns[act] = actors[through[k]].start_ns, now
                    act_ready_ns[act] = streams[actors[actor].stream].ready_ns
                    for w in range(actors[actor].wake, actors[actor].end_wake):
                        stream = wakes[w]
                        if not awake[stream]:
                            awake[stream] = True
                            woken[num_woken] = stream
                            num_woken += 1


@in_place
def _arrived(
    stream: int,
    now: int,
    actors: Records,
    reads: Records,
    writes: Records,
    streams: Records,
    turns: Integers,
    published: Integers,
    returned: Integers,
) -> int:
    """If the head of an idle stream may act: let it wait for its peers, and give its leader if it is the last."""
    here = streams[stream]
    actor = leader = -1
    if not here.busy and here.dynamic:
        for turn in range(here.first_turn, here.end_turn):
            other = turns[turn]
            if _may_act(other, actors, reads, writes, published, returned):
                first = actor < 0 or actors[other].priority > actors[actor].priority
                tie = actor >= 0 and actors[other].priority == actors[actor].priority and other < actor
                actor = other if first or tie else actor
    elif not here.busy and here.act < here.end_act:
        due = turns[here.turn]
        actor = due if _may_act(due, actors, reads, writes, published, returned) else -1
    if actor >= 0:
        here.busy, here.ready_ns = 1, now
        leader = actors[actor].leader
        actors[leader].arrived += 1
        leader = leader if actors[leader].arrived == actors[leader].end_member - actors[leader].member else -1
    return leader


@in_place
def _may_act(
    actor: int, actors: Records, reads: Records, writes: Records, published: Integers, returned: Integers
) -> bool:
    """Whether the credits of an actor suffice now."""
    found = actors[actor]
    enough = found.issued < found.acts
    for k in range(found.read, found.end_read):
        enough &= published[reads[k].register] > returned[reads[k].slot]
    for k in range(found.write, found.end_write):
        write = writes[k]
        oldest = published[write.register] - (write.end_block - write.first_block)
        for slot in range(write.slot, write.end_slot):
            enough &= write.into > 0 or returned[slot] > oldest
    return bool(enough)


@in_place
def _begun(
    leader: int,
    now: int,
    actors: Records,
    reads: Records,
    streams: Records,
    members: Integers,
    block_end_ns: Integers,
    extra_ns: Integers,
) -> int:
    """Issue the acts of all members; gives their latency."""
    latency_ns = alone_ns = 0
    for m in range(actors[leader].member, actors[leader].end_member):
        actor = actors[members[m]]
        extra = extra_ns[actor.first_act + actor.issued] if len(extra_ns) else 0
        latency_ns = max(latency_ns, actor.latency_ns + extra)
        alone_ns = max(alone_ns, streams[actor.stream].end_alone_ns)
        for k in range(actor.read, actor.end_read):
            alone_ns = max(alone_ns, block_end_ns[reads[k].block])
        actor.issued += 1
    actors[leader].arrived = 0
    actors[leader].start_ns, actors[leader].end_alone_ns = now, alone_ns + actors[leader].alone_ns
    return latency_ns


@in_place
def _ended(
    index: int,
    actors: Records,
    reads: Records,
    writes: Records,
    streams: Records,
    published: Integers,
    returned: Integers,
    block_end_ns: Integers,
) -> int:
    """End an act: publish what it wrote, return what it read. Gives its place among all acts."""
    actor = actors[index]
    stream = streams[actor.stream]
    end_alone_ns = actors[actor.leader].end_alone_ns
    for k in range(actor.write, actor.end_write):
        block_end_ns[writes[k].block] = end_alone_ns
        published[writes[k].register] += _ends_piece(writes[k])
    for k in range(actor.read, actor.end_read):
        returned[reads[k].slot] += _ends_piece(reads[k])
    act = stream.act
    stream.act += 1
    stream.turn = stream.turn + 1 if stream.turn + 1 < stream.end_turn else stream.first_turn
    stream.busy, stream.end_alone_ns = 0, end_alone_ns
    return int(act)


@in_place
def _ends_piece(port: Any) -> bool:
    """Count an act on a port; whether it was the last of its piece."""
    port.into += 1
    if port.into < port.share:
        return False
    port.into = 0
    port.block = port.block + 1 if port.block + 1 < port.end_block else port.first_block
    return True


@in_place
def _advance(resources: Records, r: int, now: int, left: Integers, shares: int) -> None:
    """Let a resource move bytes until now."""
    found = resources[r]
    elapsed = now - found.now_ns
    if found.sharers and elapsed:
        found.busy_ns += elapsed
        moved = elapsed * shares // found.sharers
        for k in range(found.room, found.room + found.sharers):
            left[k] -= moved
    found.now_ns = now


@in_place
def _next_end_ns(resources: Records, r: int, now: int, left: Integers, shares: int) -> int:
    """When the next act is through a resource if none joins before, rounded up."""
    found = resources[r]
    nearest = left[found.room]
    for k in range(found.room + 1, found.room + found.sharers):
        nearest = min(nearest, left[k])
    return int(max(now, now - (-nearest * found.sharers // shares)))


@in_place
def _leave(resources: Records, r: int, left: Integers, mover: Integers, actors: Records, through: Integers) -> int:
    """Take those off a resource that are through it; gives how many have moved all their bytes, listed in `through`."""
    found = resources[r]
    count, k = 0, found.room
    while k < found.room + found.sharers:
        if left[k] > 0:
            k += 1
            continue
        leader = mover[k]
        found.sharers -= 1
        left[k], mover[k] = left[found.room + found.sharers], mover[found.room + found.sharers]
        actors[leader].pending -= 1
        if actors[leader].pending == 0:
            through[count] = leader
            count += 1
    return count


@in_place
def _announce(heap: Integers, place: Integers, due: Integers, size: int, event: int, time: int) -> int:
    """Put an event into the binary heap, or move it there; gives the heap's size."""
    spot = place[event]
    if spot < 0:
        spot, size = size, size + 1
    due[event] = time
    while spot and due[heap[(spot - 1) >> 1]] > time:
        heap[spot] = heap[(spot - 1) >> 1]
        place[heap[spot]] = spot
        spot = (spot - 1) >> 1
    _sink(heap, place, due, size, event, spot)
    return size


@in_place
def _taken(heap: Integers, place: Integers, due: Integers, size: int) -> int:
    """Take the first event out of the heap; gives its size."""
    place[heap[0]] = -1
    if size > 1:
        _sink(heap, place, due, size - 1, heap[size - 1], 0)
    return size - 1


@in_place
def _sink(heap: Integers, place: Integers, due: Integers, size: int, event: int, spot: int) -> None:
    """Put an event at a spot of the heap, below those that are due before it."""
    child = _sooner(heap, due, size, spot)
    while child < size and due[heap[child]] < due[event]:
        heap[spot] = heap[child]
        place[heap[spot]] = spot
        spot = child
        child = _sooner(heap, due, size, spot)
    heap[spot], place[event] = event, spot


@in_place
def _sooner(heap: Integers, due: Integers, size: int, spot: int) -> int:
    """Of the two spots below one, that of what is due first; beyond the heap if there is none."""
    child = 2 * spot + 1
    return child + (child + 1 < size and due[heap[child + 1]] < due[heap[child]])
