"""Simulate a program and say what a step costs: time, bubble, exposed communication, memory, utilisation.

Two names for one bubble, since both are in use. With `ideal` the mean compute time per rank and step, and `bubble`
what a step takes beyond it: `bubble_overhead` = bubble / ideal (Narayanan et al. 2021, section 2.2.1: (p-1)/m for
p stages and m micro-batches) and `idle_share` = bubble / step time. For p=4, m=8 they are 3/8 and 3/11.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from simulator.engine import Jitter, run
from simulator.memory_timeline import memory_timelines
from strategy.program import ActKind, Program
from strategy.timeline import Timeline, step_time_ns

Intervals = list[tuple[int, int]]
"""Disjoint [begin_ns, end_ns), in order."""


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What a timeline, simulated or measured, says of one step. Times per step, means over steps and ranks.

    `exposed_communication_s` is the time in which a rank has a communication under way and computes nothing. Waiting
    for the other members of a rendezvous to arrive is not part of it: that is their lateness (pipeline bubble, or
    imbalance), not the wire's.
    """

    step_time_s: float
    bubble_overhead: float
    idle_share: float
    compute_s: float
    exposed_communication_s: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer of `simulate`. `peak_memory_bytes` is per rank; `mfu` and `hfu` need the device's peak rate."""

    timeline: Timeline
    step_time_s: float
    bubble_overhead: float
    idle_share: float
    exposed_communication_s: float
    peak_memory_bytes: tuple[int, ...]
    tokens_per_s: float
    mfu: float | None
    hfu: float | None
    makespan_s: float
    makespan_lower_bound_s: float
    num_tasks: int
    num_events: int
    simulate_time_s: float = field(compare=False)


def simulate(
    program: Program, *, steps: int = 2, peak_flop_per_s: float | None = None, jitter: Jitter | None = None
) -> Simulation:
    """Run `steps` steps in virtual time and sum up.

    Args:
        program: what to run.
        steps: the step time is the time between the ends of the last two; of one step, its whole time.
        peak_flop_per_s: of one rank's device; without it there is no utilisation.
        jitter: extra nanoseconds per act.

    Raises:
        DeadlockError: the program hangs.
        PlanError: it is inconsistent.
    """
    began_s = time.perf_counter()
    result = run(program, steps, jitter=jitter)
    figures = step_figures(result.timeline)
    step_s = figures.step_time_s
    peak = None if peak_flop_per_s is None or step_s == 0 else peak_flop_per_s * program.ranks * step_s
    return Simulation(
        timeline=result.timeline,
        step_time_s=step_s,
        bubble_overhead=figures.bubble_overhead,
        idle_share=figures.idle_share,
        exposed_communication_s=figures.exposed_communication_s,
        peak_memory_bytes=program.of_all_ranks(_peaks_nbytes(program, result.timeline)),
        tokens_per_s=program.tokens_per_step / step_s if step_s else 0.0,
        mfu=None if peak is None else program.model_flop_per_step / peak,
        hfu=None if peak is None else program.hardware_flop_per_step / peak,
        makespan_s=result.timeline.makespan_ns / 1e9,
        makespan_lower_bound_s=result.lower_bound_ns / 1e9,
        num_tasks=len(result.timeline.records),
        num_events=result.num_events,
        simulate_time_s=time.perf_counter() - began_s,
    )


def _peaks_nbytes(program: Program, timeline: Timeline) -> list[int]:
    """By rank; 0 where another rank stands for it."""
    peaks = [0] * program.ranks
    for memory in memory_timelines(program, timeline):
        peaks[memory.rank] = memory.peak_nbytes
    return peaks


def step_figures(timeline: Timeline) -> StepFigures:
    """Sum up a timeline. `bubble_overhead` is infinite where nothing computes but time passes."""
    compute_ns, exposed_ns = 0, 0
    for busy in _busy_intervals(timeline):
        computing, communicating = merged(busy.computing), merged(busy.communicating)
        compute_ns += length_ns(computing)
        exposed_ns += length_ns(communicating) - length_ns(common(computing, communicating))
    shares = timeline.steps * max(len(timeline.shown), 1)
    step_ns = step_time_ns(timeline)
    bubble_ns = step_ns - compute_ns / shares
    return StepFigures(
        step_time_s=step_ns / 1e9,
        bubble_overhead=bubble_ns * shares / compute_ns if compute_ns else (float("inf") if step_ns else 0.0),
        idle_share=bubble_ns / step_ns if step_ns else 0.0,
        compute_s=compute_ns / shares / 1e9,
        exposed_communication_s=exposed_ns / shares / 1e9,
    )


def merged(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """The union, as disjoint intervals in order."""
    union: Intervals = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        elif begin < end:
            union.append((begin, end))
    return union


def common(left: Sequence[tuple[int, int]], right: Sequence[tuple[int, int]]) -> Intervals:
    """The intersection of two lists of disjoint intervals."""
    shared: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            shared.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def length_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """The total length of disjoint intervals."""
    return sum(end - begin for begin, end in intervals)


@dataclass(slots=True)
class _Busy:
    """When a rank computes and when it communicates (loading and slicing are neither)."""

    computing: Intervals = field(default_factory=list)
    communicating: Intervals = field(default_factory=list)


def _busy_intervals(timeline: Timeline) -> list[_Busy]:
    """By rank; intervals of several streams overlap."""
    found = [_Busy() for _ in range(timeline.ranks)]
    for record in timeline.records:
        label = timeline.actors[record.actor]
        if label.kind is ActKind.COMPUTE:
            found[label.rank].computing.append((record.start_ns, record.end_ns))
        elif label.kind.is_communication:
            found[label.rank].communicating.append((record.start_ns, record.end_ns))
    return found
