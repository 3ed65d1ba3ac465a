"""Large programs: one step simulated as arrays, for millions of acts.

One step stands for all: what two of them overlap is little beside so many acts. The memory is what is allocated
(`strategy.lowering.memory`), which is never less than what is live.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from simulator.act_graph import ActGraph, Integers, act_graph, grouped
from simulator.shared_sweep import SharedTimes, shared_sweep
from simulator.sweep import Times, durations_ns, latencies_ns, ready_ns, sweep
from strategy.errors import InternalError
from strategy.lowering.memory import memory_nbytes
from strategy.program import ActKind, Program, time_alone_ns


@dataclass(frozen=True, slots=True, eq=False)
class Acts:
    """Every act, stream by stream in the order in which they ran. A stream's are `first[i]` to `first[i + 1]`."""

    first: Integers
    actor: Integers
    number: Integers
    start_ns: Integers
    end_ns: Integers
    ready_ns: Integers


@dataclass(frozen=True, slots=True)
class LargeSimulation:
    """The figures of `simulate.Simulation`, of one step, and the acts as arrays."""

    acts: Acts = field(compare=False, repr=False)
    step_time_s: float
    bubble_overhead: float
    idle_share: float
    exposed_communication_s: float
    peak_memory_bytes: tuple[int, ...]
    tokens_per_s: float
    mfu: float | None
    hfu: float | None
    makespan_lower_bound_s: float
    busiest_stream_s: float
    num_tasks: int
    num_events: int
    simulate_time_s: float = field(compare=False)


def simulate_large(
    program: Program, *, graph: ActGraph | None = None, peak_flop_per_s: float | None = None
) -> LargeSimulation:
    """Run one step in virtual time and sum up.

    Args:
        program: what to run, of fixed order.
        graph: its acts of one step, if they are known already.
        peak_flop_per_s: of one rank's device; without it there is no utilisation.

    Raises:
        SweepRefusal: the order of its acts depends on timing.
        DeadlockError: it hangs.
    """
    began_s = time.perf_counter()
    graph = act_graph(program, 1) if graph is None else graph
    if graph.shared is None:
        times = sweep(graph, durations_ns(graph))
        found = SharedTimes(times, _busy_alone_ns(graph), graph.num_nodes)
    else:
        found = shared_sweep(graph, latencies_ns(graph))
    acts = acts_of(program, graph, found.times)
    lower_bound_ns, busiest_ns = _check(program, graph, acts, found)
    step_ns = found.times.makespan_ns
    compute_ns, exposed_ns = _compute_and_exposed_ns(program, acts)
    ranks = len({stream.rank for stream in program.streams})
    bubble_ns = step_ns - compute_ns / ranks
    peak = None if peak_flop_per_s is None or step_ns == 0 else peak_flop_per_s * program.ranks * step_ns / 1e9
    return LargeSimulation(
        acts=acts,
        step_time_s=step_ns / 1e9,
        bubble_overhead=bubble_ns * ranks / compute_ns if compute_ns else (float("inf") if step_ns else 0.0),
        idle_share=bubble_ns / step_ns if step_ns else 0.0,
        exposed_communication_s=exposed_ns / ranks / 1e9,
        peak_memory_bytes=memory_nbytes(program),
        tokens_per_s=program.tokens_per_step / (step_ns / 1e9) if step_ns else 0.0,
        mfu=None if peak is None else program.model_flop_per_step / peak,
        hfu=None if peak is None else program.hardware_flop_per_step / peak,
        makespan_lower_bound_s=lower_bound_ns / 1e9,
        busiest_stream_s=busiest_ns / 1e9,
        num_tasks=graph.num_acts,
        num_events=found.num_events,
        simulate_time_s=time.perf_counter() - began_s,
    )


def acts_of(program: Program, graph: ActGraph, times: Times) -> Acts:
    """The acts of swept times, by stream."""
    stream_of = np.full(len(program.actors), -1, dtype=np.int64)
    for index, stream in enumerate(program.streams):
        stream_of[list(set(stream.sequence))] = index
    first, order = grouped(stream_of[graph.actor], len(program.streams))
    node = np.repeat(np.arange(graph.num_nodes), np.diff(graph.first_act))[order]
    return Acts(
        first=first,
        actor=graph.actor[order],
        number=graph.number[order],
        start_ns=times.start_ns[node],
        end_ns=times.end_ns[node],
        ready_ns=ready_ns(graph, times)[order],
    )


def _busy_alone_ns(graph: ActGraph) -> Integers:
    """How long each resource that nothing shares moves bytes."""
    users = np.repeat(np.arange(len(graph.first_use) - 1), np.diff(graph.first_use))
    acts = np.bincount(graph.leader, minlength=len(graph.first_use) - 1)[users]
    busy = np.zeros(len(graph.resources), dtype=np.int64)
    np.add.at(busy, graph.user_of, graph.alone_ns * acts)
    return busy


def _check(program: Program, graph: ActGraph, acts: Acts, found: SharedTimes) -> tuple[int, int]:
    """The laws of `conservation`; gives a lower bound of the makespan, and the time of the busiest stream, in ns.

    No run is shorter than the same acts at their times alone.

    Raises:
        InternalError: a law does not hold.
    """
    follows = np.ones(len(acts.start_ns), dtype=np.bool_)
    follows[acts.first[:-1][np.diff(acts.first) > 0]] = False
    ended_ns = np.where(follows, np.roll(acts.end_ns, 1), 0)
    if (ended_ns > acts.start_ns).any() or (acts.ready_ns > acts.start_ns).any() or (acts.start_ns > acts.end_ns).any():
        raise InternalError("a stream does two acts at once, or an act before what it needs")
    _check_resources(program, graph, found)
    total_ns = np.concatenate(([0], np.cumsum(acts.end_ns - acts.start_ns)))
    busiest_ns = int((total_ns[acts.first[1:]] - total_ns[acts.first[:-1]]).max(initial=0))
    alone_ns = sweep(graph, durations_ns(graph), shared=True).makespan_ns
    if found.times.makespan_ns < max(alone_ns, busiest_ns):
        raise InternalError(f"the run took {found.times.makespan_ns} ns, less than its bound of {alone_ns} ns")
    return max(alone_ns, busiest_ns), busiest_ns


def _check_resources(program: Program, graph: ActGraph, found: SharedTimes) -> None:
    """Every resource moved what was demanded of it, no faster than it is, and only while there was something."""
    number_of = {name: number for number, name in enumerate(graph.resources)}
    demanded, uses = [0] * len(number_of), [0] * len(number_of)
    for actor in program.actors:
        for name, nbytes in actor.work.demands:
            demanded[number_of[name]] += nbytes * actor.acts_per_step
            uses[number_of[name]] += actor.acts_per_step
    for name, number in number_of.items():
        least_ns, busy_ns = time_alone_ns(demanded[number], program.resources[name]), int(found.busy_ns[number])
        if not least_ns <= busy_ns <= least_ns + uses[number]:
            raise InternalError(f"resource {name} was busy for {busy_ns} ns instead of {least_ns} ns")


def _compute_and_exposed_ns(program: Program, acts: Acts) -> tuple[int, int]:
    """Over all ranks: time in which they compute, and in which they communicate and do not compute."""
    computes = np.array([actor.kind is ActKind.COMPUTE for actor in program.actors], dtype=np.bool_)[acts.actor]
    moves = np.array([actor.kind.is_communication for actor in program.actors], dtype=np.bool_)[acts.actor]
    rank = np.repeat(np.array([stream.rank for stream in program.streams], dtype=np.int64), np.diff(acts.first))
    shift_ns = rank * (int(acts.end_ns.max(initial=0)) + 1)
    begin_ns, end_ns = acts.start_ns + shift_ns, acts.end_ns + shift_ns
    compute_ns = union_ns(begin_ns[computes], end_ns[computes])
    busy = computes | moves
    return compute_ns, union_ns(begin_ns[busy], end_ns[busy]) - compute_ns


def union_ns(begin_ns: Integers, end_ns: Integers) -> int:
    """The length of the union of intervals."""
    order = np.argsort(begin_ns, kind="stable")
    begin_ns, end_ns = begin_ns[order], end_ns[order]
    reached_ns = np.concatenate(([0], np.maximum.accumulate(end_ns)[:-1])) if len(end_ns) else end_ns
    return int(np.maximum(end_ns - np.maximum(begin_ns, reached_ns), 0).sum())
