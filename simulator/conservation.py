"""What holds in every simulation, checked after every simulation.

Every resource was busy for as long as the bytes demanded of it take, no stream does two things at once or is busy for
longer than the run, and the run is no shorter than its critical path and its busiest stream.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.acts import Acts, Integers
from strategy.base.compiled import in_place
from strategy.base.errors import InternalError
from strategy.program.program import Actor, Program, Work, time_alone_ns


def check_conservation(program: Program, acts: Acts, *, critical_path_ns: int, busy_ns: Mapping[str, int]) -> int:
    """Check the laws; gives the time of the busiest stream, in ns.

    Args:
        program: what was simulated.
        acts: all that it did.
        critical_path_ns: the longest chain of acts that need each other, each at its time alone.
        busy_ns: resource -> time in which it had something to move.

    Raises:
        InternalError: a law does not hold.
    """
    busiest = np.zeros(len(acts.first) - 1, dtype=np.int64)
    wrong = _check_streams(acts.first, acts.start_ns, acts.end_ns, acts.ready_ns, busiest)
    if wrong >= 0:
        name = program.streams[int(np.searchsorted(acts.first, wrong, side="right")) - 1].name
        raise InternalError(f"stream {name} does two acts at once, or one backwards, at {acts.start_ns[wrong]} ns")
    _check_resources(program, acts.steps, busy_ns)
    busiest_ns = int(busiest.max(initial=0))
    if acts.makespan_ns < max(critical_path_ns, busiest_ns):
        raise InternalError(f"the run took {acts.makespan_ns} ns, less than its bound of {critical_path_ns} ns")
    return busiest_ns


@in_place
def _check_streams(first: Integers, start_ns: Integers, end_ns: Integers, ready_ns: Integers, took_ns: Integers) -> int:
    """Add up the time of every stream; gives an act that begins too early or ends too late, -1 if there is none."""
    wrong = -1
    for stream in range(len(first) - 1):
        free_ns = 0
        for act in range(first[stream], first[stream + 1]):
            if not free_ns <= ready_ns[act] <= start_ns[act] <= end_ns[act]:
                wrong = act
            free_ns = end_ns[act]
            took_ns[stream] += end_ns[act] - start_ns[act]
    return wrong


def act_alone_ns(program: Program, actor: Actor) -> int:
    """How long one act of `actor` takes when nothing else runs."""
    return work_alone_ns(program, actor.work)


def work_alone_ns(program: Program, work: Work) -> int:
    """How long it takes when nothing else runs."""
    transfers = [time_alone_ns(nbytes, program.resources[name]) for name, nbytes in work.demands]
    return work.latency_ns + max(transfers, default=0)


def _check_resources(program: Program, steps: int, busy_ns: Mapping[str, int]) -> None:
    """Rounding up costs less than a nanosecond per act."""
    demanded, uses = dict.fromkeys(program.resources, 0), dict.fromkeys(program.resources, 0)
    for actor in program.actors:
        for name, nbytes in actor.work.demands:
            demanded[name] += nbytes * actor.acts_per_step * steps
            uses[name] += actor.acts_per_step * steps
    for name, nbytes in demanded.items():
        least_ns = time_alone_ns(nbytes, program.resources[name])
        if not least_ns <= busy_ns[name] <= least_ns + uses[name]:
            raise InternalError(f"resource {name} moved {nbytes} bytes in {busy_ns[name]} ns instead of {least_ns} ns")
