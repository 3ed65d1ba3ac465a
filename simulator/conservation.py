"""What holds in every simulation, checked after every simulation.

Bytes served are the bytes demanded, no resource is faster than it is, no stream does two things at once or is
busy for longer than the run, and the run is no shorter than its critical path and its busiest stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from strategy.errors import InternalError
from strategy.program import Actor, Program, time_alone_ns
from strategy.timeline import ActRecord


def check_conservation(
    program: Program,
    records: Sequence[ActRecord],
    *,
    served_bytes: Mapping[str, int],
    busy_ns: Mapping[str, int],
) -> int:
    """Check the laws; gives the larger of critical path and busiest stream, a lower bound of the makespan in ns.

    Args:
        program: what was simulated.
        records: its acts in the order in which they ended, so that an act comes after all that it waited for.
        served_bytes: resource -> bytes that it has moved.
        busy_ns: resource -> time in which it had something to move.

    Raises:
        InternalError: a law does not hold.
    """
    makespan_ns = max((record.end_ns for record in records), default=0)
    stream_ns = _busy_streams_ns(program, records)
    _check_resources(program, records, served_bytes, busy_ns)
    lower_bound_ns = max(critical_path_ns(program, records), max(stream_ns, default=0))
    if makespan_ns < lower_bound_ns:
        raise InternalError(f"the run took {makespan_ns} ns, less than its lower bound of {lower_bound_ns} ns")
    return lower_bound_ns


def critical_path_ns(program: Program, records: Sequence[ActRecord]) -> int:
    """The longest chain of acts that need each other's data, share a stream or meet, each at its time alone.

    `records` are in the order in which they ended. Credits and contention can only make a run longer.
    """
    alone_ns = [act_alone_ns(program, actor) for actor in program.actors]
    stream_ns = [0] * len(program.streams)
    published_ns: dict[tuple[int, int], int] = {}
    meeting: dict[tuple[int, int], list[ActRecord]] = {}
    members = Counter(actor.rendezvous for actor in program.actors)
    for record in records:
        rendezvous = program.actors[record.actor].rendezvous
        together = [record]
        if rendezvous is not None:
            together = meeting.setdefault((rendezvous, record.number), [])
            together.append(record)
            if len(together) < members[rendezvous]:
                continue
        end_ns = 0
        for member in together:
            begin_ns = stream_ns[member.stream]
            for port in program.actors[member.actor].reads:
                begin_ns = max(begin_ns, published_ns.get((port.register, member.number // port.acts_per_piece), 0))
            end_ns = max(end_ns, begin_ns + alone_ns[member.actor])
        for member in together:
            stream_ns[member.stream] = end_ns
            for port in program.actors[member.actor].writes:
                piece = member.number // port.acts_per_piece + program.registers[port.register].initial
                published_ns[port.register, piece] = end_ns
    return max(stream_ns, default=0)


def act_alone_ns(program: Program, actor: Actor) -> int:
    """How long one act of `actor` takes when nothing else runs."""
    transfers = (time_alone_ns(nbytes, program.resources[name]) for name, nbytes in actor.work.demands)
    return actor.work.latency_ns + max(transfers, default=0)


def _busy_streams_ns(program: Program, records: Sequence[ActRecord]) -> list[int]:
    busy_ns = [0] * len(program.streams)
    free_ns = [0] * len(program.streams)
    for record in records:
        if not free_ns[record.stream] <= record.ready_ns <= record.start_ns <= record.end_ns:
            name = program.streams[record.stream].name
            raise InternalError(f"stream {name} does two acts at once, or one backwards, at {record.start_ns} ns")
        free_ns[record.stream] = record.end_ns
        busy_ns[record.stream] += record.end_ns - record.start_ns
    return busy_ns


def _check_resources(
    program: Program, records: Sequence[ActRecord], served_bytes: Mapping[str, int], busy_ns: Mapping[str, int]
) -> None:
    demanded = dict.fromkeys(program.resources, 0)
    ends = dict.fromkeys(program.resources, 0)
    for record in records:
        for name, nbytes in program.actors[record.actor].work.demands:
            demanded[name] += nbytes
            ends[name] += 1
    for name, nbytes in demanded.items():
        if served_bytes[name] != nbytes:
            raise InternalError(f"resource {name} served {served_bytes[name]} of {nbytes} bytes demanded")
        alone_ns = time_alone_ns(nbytes, program.resources[name])
        if not alone_ns <= busy_ns[name] <= alone_ns + ends[name]:
            raise InternalError(f"resource {name} moved {nbytes} bytes in {busy_ns[name]} ns instead of {alone_ns} ns")
