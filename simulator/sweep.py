"""The array sweep: when every act of a program starts and ends, by one pass over its graph of acts.

    start = latest end of what it waits for        end = start + duration

These are the event engine's times, to the nanosecond, for every program that has such a graph (`act_graph` says which)
and in which no two streams use one resource. The graph is made once and swept for as many durations as there are. Where
streams do share resources, `shared_sweep` goes from event to event instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.act_graph import ActGraph, Integers, SweepRefusal
from simulator.engine import Jitter
from strategy.compiled import compiled
from strategy.program import Program
from strategy.timeline import ActRecord, Clock, Timeline, make_timeline


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """When the nodes of a graph start and end."""

    start_ns: Integers
    end_ns: Integers

    @property
    def makespan_ns(self) -> int:
        """When the last act ends."""
        return int(self.end_ns.max(initial=0))


def durations_ns(graph: ActGraph, extra_ns: Integers | None = None) -> Integers:
    """How long every node takes alone; `extra_ns` adds to the latency of every act."""
    return latencies_ns(graph, extra_ns) + graph.transfer_ns


def latencies_ns(graph: ActGraph, extra_ns: Integers | None = None) -> Integers:
    """How long every node takes before it moves bytes: the longest latency of its acts."""
    latency_ns = graph.latency_ns if extra_ns is None else graph.latency_ns + extra_ns
    return latency_ns if graph.num_nodes == graph.num_acts else np.maximum.reduceat(latency_ns, graph.first_act[:-1])


def jitter_ns(graph: ActGraph, jitter: Jitter) -> Integers:
    """What `jitter` adds to every act."""
    acts = zip(graph.actor.tolist(), graph.number.tolist(), strict=True)
    return np.array([jitter(actor, number) for actor, number in acts], dtype=np.int64)


def sweep(graph: ActGraph, durations: Integers, *, shared: bool = False) -> Times:
    """The times of all nodes that take so many nanoseconds each.

    With `shared`, acts that share a resource are taken as if each had it alone, which bounds their times from below.

    Raises:
        SweepRefusal: acts may share a resource, so that what they take depends on when they run.
    """
    if graph.shared is not None and not shared:
        raise SweepRefusal(f"not for the sweep: {graph.shared}", hint="shared_sweep takes it")
    end_ns = np.empty_like(durations)
    _sweep(graph.first_wait[graph.first_act], graph.waits, durations, end_ns)
    return Times(end_ns - durations, end_ns)


def ready_ns(graph: ActGraph, times: Times) -> Integers:
    """When every act could have started, had it not to wait for others of its rendezvous."""
    found = np.zeros(graph.num_acts, dtype=np.int64)
    _latest(graph.first_wait, graph.waits, times.end_ns, found)
    return found


def sweep_timeline(program: Program, graph: ActGraph, times: Times) -> Timeline:
    """The timeline of swept times: the one that the event engine finds."""
    node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.first_act))
    stream_of = {actor: index for index, stream in enumerate(program.streams) for actor in stream.sequence}
    registers = program.registers
    records = []
    columns = (graph.actor, graph.number, times.start_ns[node], times.end_ns[node], ready_ns(graph, times))
    for actor, number, start_ns, end_ns, ready in zip(*(column.tolist() for column in columns), strict=True):
        found = program.actors[actor]
        reads = tuple(number // p.acts_per_piece % registers[p.register].blocks for p in found.reads)
        writes = tuple(
            (number // p.acts_per_piece + registers[p.register].initial) % registers[p.register].blocks
            for p in found.writes
        )
        records.append(ActRecord(actor, stream_of[actor], number, reads, writes, start_ns, end_ns, ready))
    return make_timeline(program, records, clock=Clock.SIMULATED, steps=graph.steps)


@compiled
def _sweep(first: Integers, waits: NDArray[np.int32], durations: Integers, ends: Integers) -> None:
    for node in range(len(durations)):
        start = 0
        for k in range(first[node], first[node + 1]):
            start = max(start, ends[waits[k]])
        ends[node] = start + durations[node]


@compiled
def _latest(first: Integers, waits: NDArray[np.int32], ends: Integers, latest: Integers) -> None:
    for act in range(len(latest)):
        for k in range(first[act], first[act + 1]):
            latest[act] = max(latest[act], ends[waits[k]])
