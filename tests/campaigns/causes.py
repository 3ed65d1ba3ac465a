"""Causes: what a step is split into, for pairs of random plans, against a count of every instant of their timelines.

A case is two plans. Each is simulated for one step; at every instant every rank computes, else communicates, else does
something of its own, else waits. These four add up to the step, and their differences to the difference of the steps,
within `MOST_OFF` of it; what no cause stands for is `MOST_LEFT` of it at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from experiments.explanation.time_by_cause import GROUPS, TimeByCause, differences_by_cause_s, grouped_s, time_by_cause
from simulator.simulate import Simulation, simulate
from strategy.program.program import ActKind
from tests.campaigns.outcome import Outcome
from tests.support.random_plans import random_plan_case

MOST_OFF, MOST_LEFT = 0.01, 0.05
COMPUTES, COMMUNICATES, LOCALLY, WAITS = GROUPS
QUOTAS = {COMMUNICATES: 0.5, LOCALLY: 0.3, WAITS: 0.5}


def run(cases: int, seed: int) -> Outcome:
    """Split `cases` pairs."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(f"pair {number}", check(number, exercised), exercised)
    return outcome


def check(number: int, exercised: list[str]) -> Iterator[str]:
    """What is wrong with the causes of a pair."""
    pair = [_simulated(seed) for seed in (2 * number, 2 * number + 1)]
    counts = [counted_s(found) for found, _ in pair]
    for (found, causes), counted in zip(pair, counts, strict=True):
        for group, seconds in causes.by_group_s.items():
            exercised += [group] * (seconds > 0)
            if abs(seconds - counted[group]) > 1e-9 + 1e-6 * found.step_time_s:
                yield f"{group} is {seconds} s, counted {counted[group]} s"
        for group, seconds in ((COMPUTES, found.compute_s), (COMMUNICATES, found.exposed_communication_s)):
            if abs(seconds - causes.by_group_s[group]) > 1e-9:
                yield f"{group} is {causes.by_group_s[group]} s, the simulator says {seconds}"
    (one, first), (other, second) = pair
    difference_s = other.step_time_s - one.step_time_s
    more = differences_by_cause_s(first, second)
    if abs(sum(more.values()) - difference_s) > MOST_OFF * abs(difference_s) + 1e-12:
        yield f"the causes add up to {sum(more.values())} s, the steps differ by {difference_s} s"
    left_s = difference_s - sum(counts[1][group] - counts[0][group] for group in GROUPS)
    if abs(left_s) > MOST_LEFT * abs(difference_s) + 1e-9:
        yield f"{left_s} s of {difference_s} s are none of what was counted"
    if set(grouped_s(more)) != set(GROUPS):
        yield f"groups are {set(grouped_s(more))}"


def _simulated(seed: int) -> tuple[Simulation, TimeByCause]:
    case = random_plan_case(seed)
    found = simulate(case.program, steps=1)
    return found, time_by_cause(case.plan.priced, found)


def counted_s(found: Simulation) -> dict[str, float]:
    """Group of causes -> seconds, a mean over ranks: what goes on at every instant between two of a rank's events."""
    program, timeline = found.run.program, found.timeline
    total_ns = dict.fromkeys(GROUPS, 0)
    for rank in timeline.shown:
        acts = [
            (record.start_ns, record.end_ns, _group(program.actors[record.actor].kind))
            for record in timeline.records
            if timeline.streams[record.stream].rank == rank and record.end_ns > record.start_ns
        ]
        times = sorted({0, timeline.makespan_ns, *(t for begin, end, _ in acts for t in (begin, end))})
        for begin, end in pairwise(times):
            going_on = {group for start, stop, group in acts if start <= begin and end <= stop}
            total_ns[next((group for group in GROUPS if group in going_on), WAITS)] += end - begin
    return {group: nanoseconds / 1e9 / len(timeline.shown) for group, nanoseconds in total_ns.items()}


def _group(kind: ActKind) -> str:
    if kind is ActKind.COMPUTE:
        return COMPUTES
    return COMMUNICATES if kind.is_communication else LOCALLY
