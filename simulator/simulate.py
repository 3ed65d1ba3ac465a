"""Simulate a program and say what a step costs: time, bubble, exposed communication, memory, utilisation.

Two names for one bubble, since both are in use. With `ideal` the mean compute time per rank and step, and `bubble`
what a step takes beyond it: `bubble_overhead` = bubble / ideal (Narayanan et al. 2021, section 2.2.1: (p-1)/m for
p stages and m micro-batches) and `idle_share` = bubble / step time. For p=4, m=8 they are 3/8 and 3/11.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.acts import Acts, Integers
from simulator.engine import Jitter, SimulatedRun, run
from simulator.memory_timeline import live_peaks_nbytes
from strategy.base.compiled import in_place
from strategy.lowering.memory import is_allocated, memory_nbytes
from strategy.program.program import ActKind, Program
from strategy.program.timeline import Timeline

MOST_ACTS = 200_000
"""More acts of a step are simulated for one step alone: what two overlap is little beside so many."""

COMPUTES, MOVES = 1, 2
"""What an act keeps a rank busy with. Loading and slicing are neither."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer of `simulate`. Times per step are means over steps and ranks.

    `exposed_communication_s` is the time in which a rank has a communication under way and computes nothing. Waiting
    for the other members of a rendezvous to arrive is not part of it: that is their lateness (pipeline bubble, or
    imbalance), not the wire's.

    `mfu` and `hfu` need the device's peak rate. `num_tasks` are the acts of all steps on the ranks that are there.
    """

    run: SimulatedRun = field(compare=False, repr=False)
    steps: int
    step_time_s: float
    bubble_overhead: float
    idle_share: float
    compute_s: float
    exposed_communication_s: float
    tokens_per_s: float
    mfu: float | None
    hfu: float | None
    makespan_s: float
    makespan_lower_bound_s: float
    busiest_s: float
    num_tasks: int
    num_events: int
    simulate_time_s: float = field(compare=False)

    @property
    def timeline(self) -> Timeline:
        """The acts as records; made anew each time."""
        return self.run.timeline

    @property
    def peak_memory_bytes(self) -> tuple[int, ...]:
        """What each rank allocates; of a program without places for its blocks, what is live at once. Found anew."""
        program = self.run.program
        return memory_nbytes(program) if is_allocated(program) else live_peaks_nbytes(program, self.timeline)


def simulate(
    program: Program, *, steps: int | None = None, peak_flop_per_s: float | None = None, jitter: Jitter | None = None
) -> Simulation:
    """Run a program in virtual time and sum up.

    Args:
        program: what to run.
        steps: the step time is the time between the ends of the last two; of one step, its whole time. By default two
            are run, and one where a step has more than `MOST_ACTS` acts.
        peak_flop_per_s: of one rank's device; without it there is no utilisation.
        jitter: extra nanoseconds per act.

    Raises:
        DeadlockError: the program hangs.
        PlanError: it is inconsistent.
    """
    began_s = time.perf_counter()
    steps = steps or (1 if sum(actor.acts_per_step for actor in program.actors) > MOST_ACTS else 2)
    found = run(program, steps, jitter=jitter)
    acts, ranks = found.acts, max(len({stream.rank for stream in program.streams}), 1)
    step_ns = step_time_ns(program, acts)
    compute_ns, exposed_ns = (total / (steps * ranks) for total in _compute_and_exposed_ns(program, acts))
    bubble_ns = step_ns - compute_ns
    step_s = step_ns / 1e9
    peak = None if peak_flop_per_s is None or step_ns == 0 else peak_flop_per_s * program.ranks * step_s
    return Simulation(
        run=found,
        steps=steps,
        step_time_s=step_s,
        bubble_overhead=bubble_ns / compute_ns if compute_ns else (float("inf") if step_ns else 0.0),
        idle_share=bubble_ns / step_ns if step_ns else 0.0,
        compute_s=compute_ns / 1e9,
        exposed_communication_s=exposed_ns / 1e9,
        tokens_per_s=program.tokens_per_step / step_s if step_ns else 0.0,
        mfu=None if peak is None else program.model_flop_per_step / peak,
        hfu=None if peak is None else program.hardware_flop_per_step / peak,
        makespan_s=acts.makespan_ns / 1e9,
        makespan_lower_bound_s=found.lower_bound_ns / 1e9,
        busiest_s=found.busiest_ns / steps / 1e9,
        num_tasks=len(acts),
        num_events=found.num_events,
        simulate_time_s=time.perf_counter() - began_s,
    )


def step_time_ns(program: Program, acts: Acts) -> int:
    """The time from the end of the last step but one to the end of the last; of a single step, its whole time."""
    if acts.steps == 1:
        return acts.makespan_ns
    last = (acts.steps - 1) * np.array([actor.acts_per_step for actor in program.actors], dtype=np.int64)
    before = acts.number < last[acts.actor]
    return acts.makespan_ns - int(acts.end_ns[before].max(initial=0))


def _compute_and_exposed_ns(program: Program, acts: Acts) -> tuple[int, int]:
    """Over all ranks: time in which they compute, and in which they communicate and do not compute."""
    meaning = np.zeros(len(program.actors), dtype=np.int8)
    for index, actor in enumerate(program.actors):
        if actor.kind is ActKind.COMPUTE or actor.kind.is_communication:
            meaning[index] = COMPUTES if actor.kind is ActKind.COMPUTE else MOVES
    ranks = np.array([stream.rank for stream in program.streams], dtype=np.int64)
    order = np.argsort(ranks, kind="stable")
    group = np.concatenate((np.flatnonzero(np.diff(ranks[order], prepend=-1)), [len(order)]))
    covered = np.zeros(3, dtype=np.int64)
    _cover(group, order, acts.first, acts.first[:-1].copy(), meaning[acts.actor], acts.start_ns, acts.end_ns, covered)
    return int(covered[COMPUTES]), int(covered[MOVES] - covered[COMPUTES])


@in_place
def _cover(
    group: Integers,
    order: Integers,
    first: Integers,
    following: Integers,
    meaning: NDArray[np.int8],
    start_ns: Integers,
    end_ns: Integers,
    covered: Integers,
) -> None:
    """Add up, rank by rank, the time covered by acts that compute, and by those that compute or move.

    Group i are the streams of a rank, `order[group[i]:group[i + 1]]`. Their acts are taken as they start; `following`
    is the next one of each stream.
    """
    for i in range(len(group) - 1):
        computed_ns = busy_ns = 0
        left = 0
        for k in range(group[i], group[i + 1]):
            left += first[order[k] + 1] - first[order[k]]
        for _ in range(left):
            act = -1
            for k in range(group[i], group[i + 1]):
                other = following[order[k]]
                if other < first[order[k] + 1] and (act < 0 or start_ns[other] < start_ns[act]):
                    act, stream = other, order[k]
            following[stream] += 1
            if meaning[act]:
                covered[MOVES] += max(0, end_ns[act] - max(start_ns[act], busy_ns))
                busy_ns = max(busy_ns, end_ns[act])
            if meaning[act] == COMPUTES:
                covered[COMPUTES] += max(0, end_ns[act] - max(start_ns[act], computed_ns))
                computed_ns = max(computed_ns, end_ns[act])
