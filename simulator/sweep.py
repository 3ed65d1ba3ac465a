"""The array sweep: when every act of a program starts and ends, by one pass over its graph of acts.

    start = latest end of what it waits for        end = start + duration

These are the event engine's times, to the nanosecond, for every program that has such a graph (`act_graph` says which)
and in which no two streams use one resource. The graph is made once and swept for as many durations as there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.act_graph import ActGraph, SweepRefusal, grouped
from simulator.acts import Acts, Integers
from strategy.base.compiled import compiled
from strategy.program.program import Program
from strategy.program.protocol import streams_of_actors


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


def sweep(graph: ActGraph, durations: Integers) -> Times:
    """The times of all nodes that take so many nanoseconds each.

    Raises:
        SweepRefusal: acts may share a resource, so that what they take depends on when they run.
    """
    if graph.shared is not None:
        raise SweepRefusal(f"not for the sweep: {graph.shared}", hint="the event engine takes it")
    end_ns = np.empty_like(durations)
    _sweep(graph.first_wait[graph.first_act], graph.waits, durations, end_ns)
    return Times(end_ns - durations, end_ns)


def ready_ns(graph: ActGraph, times: Times) -> Integers:
    """When every act could have started, had it not to wait for others of its rendezvous."""
    found = np.zeros(graph.num_acts, dtype=np.int64)
    _latest(graph.first_wait, graph.waits, times.end_ns, found)
    return found


def swept_acts(program: Program, graph: ActGraph, times: Times) -> Acts:
    """The acts of swept times: those that the event engine finds."""
    stream_of = np.array(streams_of_actors(program), dtype=np.int64)
    first, order = grouped(stream_of[graph.actor], len(program.streams))
    node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.first_act))[order]
    return Acts(
        steps=graph.steps,
        first=first,
        actor=graph.actor[order],
        number=graph.number[order],
        start_ns=times.start_ns[node],
        end_ns=times.end_ns[node],
        ready_ns=ready_ns(graph, times)[order],
    )


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
