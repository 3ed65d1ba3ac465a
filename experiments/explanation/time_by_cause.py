"""Time by cause: where the time of a simulated step goes, as parts that add up to it.

    forward, recompute, backward, update      computing
    exchange, gathers, collectives, transfers  communication that nothing hides: which is which says
                                              `experiments.explanation.exposure`
    local                                     copies between host and device, slices, loading
    imbalance                                 what the busiest rank does more than the mean rank, which waits for it
    bubble                                    what even the busiest rank waits: the schedule fills and drains

All but the last two are means over the ranks of the time in which a rank does this and nothing that stands above it;
what runs beside something else counts for that. A bubble below zero is what two steps overlap.

With one stage of p alike and m micro-batches, `bubble` over all that is computed is (p - 1) / m (Narayanan et al. 2021,
section 2.2.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from experiments.explanation.exposure import (
    COLLECTIVES,
    COMPUTE,
    EXCHANGE,
    GATHERS,
    TRANSFERS,
    communication_causes,
    covered_ns,
)
from simulator.simulate import Simulation
from strategy.graph.graph import Phase
from strategy.layout.objective import Priced
from strategy.lowering.exchange_buckets import in_buckets
from strategy.program.program import ActKind

FORWARD, RECOMPUTE, BACKWARD, UPDATE = "forward", "recompute", "backward", "update"
LOCAL, IMBALANCE, IDLE = "local", "imbalance", "bubble"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "compute": (FORWARD, RECOMPUTE, BACKWARD, UPDATE),
    "exposed communication": (COLLECTIVES, TRANSFERS, GATHERS, EXCHANGE),
    "host and local": (LOCAL,),
    "bubble and imbalance": (IMBALANCE, IDLE),
}
"""What an explanation names first -> its causes. What stands first hides what comes after it."""
ORDER = tuple(cause for causes in GROUPS.values() for cause in causes)
_DIGITS = 12
"""Of seconds: a thousandth of a nanosecond, as a mean over ranks and steps may be."""
WORKING = ORDER[: ORDER.index(IMBALANCE)]
PHASES: Mapping[Phase, str] = {Phase.BACKWARD: BACKWARD, Phase.WEIGHT: BACKWARD, Phase.UPDATE: UPDATE}


@dataclass(frozen=True, slots=True)
class TimeByCause:
    """A step in seconds, what it consists of (`ORDER`), and how long every rank that is there itself is busy in it."""

    step_time_s: float
    by_cause_s: Mapping[str, float]
    busy_s: Mapping[int, float]

    @property
    def by_group_s(self) -> dict[str, float]:
        """The same under few names (`GROUPS`)."""
        return grouped_s(self.by_cause_s)


def grouped_s(by_cause_s: Mapping[str, float]) -> dict[str, float]:
    """Seconds by cause, added up by group."""
    return {group: sum(by_cause_s[cause] for cause in causes) for group, causes in GROUPS.items()}


def time_by_cause(priced: Priced, found: Simulation) -> TimeByCause:
    """Split the step of a simulated plan."""
    cause_of = causes_of_actors(priced)
    acts, program = found.run.acts, found.run.program
    turn = np.array([WORKING.index(cause_of.get(actor.name, LOCAL)) for actor in program.actors])
    stream_rank = np.array([stream.rank for stream in program.streams])
    turn_of_act, rank = turn[acts.actor], stream_rank[acts.stream]
    ranks = np.unique(stream_rank).tolist()
    total_s, busy_s = dict.fromkeys(ORDER, 0.0), dict.fromkeys(ranks, 0.0)
    for one in ranks:
        mine = np.flatnonzero(rank == one)
        before_ns = 0
        for last, cause in enumerate(WORKING):
            here = mine[turn_of_act[mine] <= last]
            until_ns = covered_ns(acts.start_ns[here], acts.end_ns[here])
            total_s[cause] += (until_ns - before_ns) / 1e9 / found.steps / len(ranks)
            before_ns = until_ns
        busy_s[one] = before_ns / 1e9 / found.steps
    most_s = max(busy_s.values(), default=0.0)
    total_s[IMBALANCE] = _left_s(most_s - sum(busy_s.values()) / max(len(ranks), 1))
    total_s[IDLE] = _left_s(found.step_time_s - most_s)
    return TimeByCause(found.step_time_s, total_s, busy_s)


def _left_s(seconds: float) -> float:
    """A difference of sums of whole nanoseconds, without what floating point leaves where there is none."""
    return round(seconds, _DIGITS) + 0.0


def differences_by_cause_s(one: TimeByCause, other: TimeByCause) -> dict[str, float]:
    """By cause, what the other step takes more, in seconds; together the difference of the two."""
    return {cause: other.by_cause_s[cause] - one.by_cause_s[cause] for cause in ORDER}


def causes_of_actors(priced: Priced) -> dict[str, str]:
    """Actor -> its cause."""
    communication, ops = communication_causes(priced), priced.graph.by_name
    found = {}
    for action in in_buckets(priced).arrangement.actions:
        cause = communication.get(action.name, LOCAL)
        if cause != COMPUTE:
            found[action.name] = cause
        elif action.kind is not ActKind.COMPUTE:
            found[action.name] = LOCAL
        elif action.op and ops[action.op].repeats:
            found[action.name] = RECOMPUTE
        else:
            found[action.name] = PHASES.get(action.phase, FORWARD)
    return found
