"""Machine: a program as arrays of records, which the compiled event engine reads and counts in.

These are the counters of the actor protocol (`strategy.program.protocol`): pieces published per register, pieces
returned per register and reader, acts issued per actor, acts done per stream. The acts of one rendezvous are begun and
ended by its first member, its *leader*; every other actor leads itself. A machine runs once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.conservation import work_alone_ns
from simulator.resources import SHARES, check_demands
from strategy.base.errors import PlanError
from strategy.base.numbers import Numbers
from strategy.program.program import Actor, Program, Work, time_alone_ns
from strategy.program.protocol import FOREVER, check_consistent, rendezvous_members, streams_of_actors

Integers = NDArray[np.int64]
Records = NDArray[np.void]

LARGEST = 2**62
"""No time, in nanoseconds or in shares of one, may come to more."""


def _record(*names: str) -> np.dtype[np.void]:
    """Times and units of 64 bits first, then what counts and points."""
    wide = [name for name in names if name.endswith("_ns") or name == "units"]
    return np.dtype(
        [(name, np.int64) for name in wide] + [(name, np.int32) for name in names if name not in wide], align=True
    )


ACTOR = _record(
    *("stream", "leader", "acts", "first_act", "latency_ns", "priority"),
    *("read", "end_read", "write", "end_write", "wake", "end_wake"),
    # Of a leader: its members and what they move together; then the act that is under way.
    *("member", "end_member", "use", "end_use", "alone_ns"),
    *("issued", "arrived", "pending", "start_ns", "end_alone_ns"),
)
READ = _record("register", "slot", "share", "into", "block", "first_block", "end_block")
WRITE = _record("register", "slot", "end_slot", "share", "into", "block", "first_block", "end_block")
STREAM = _record("turn", "first_turn", "end_turn", "dynamic", "act", "end_act", "busy", "ready_ns", "end_alone_ns")
USE = _record("resource", "units")
RESOURCE = _record("room", "sharers", "now_ns", "busy_ns")


class Machine(NamedTuple):
    """The records, and the lists that their ranges point into.

    A range is that from a field up to the one called `end_` so: `reads[actor.read:actor.end_read]` are what an actor
    reads, `wakes` the streams in which its end may let something act, `members` whom it leads, `uses` the units of
    every resource that they move. A stream's `turn` goes round its actors of one step, in `turns`; its `act`, among all
    acts of the program, up to `end_act`. A port is `into` its present piece by so many acts of its `share`, and its
    present block is `block`. `returned` counts, by slot, the pieces of each read. `block_end_ns` is when each block
    could have been written, had all acts taken their time alone.
    """

    actors: Records
    reads: Records
    writes: Records
    streams: Records
    resources: Records
    uses: Records
    wakes: Integers
    members: Integers
    turns: Integers
    published: Integers
    returned: Integers
    block_end_ns: Integers
    heap: Integers
    place: Integers
    due: Integers
    mover: Integers
    left: Integers
    through: Integers
    woken: Integers
    awake: NDArray[np.bool_]
    shares: int


def machine(program: Program, steps: int) -> Machine:
    """The arrays of `steps` steps.

    Raises:
        PlanError: the program is inconsistent, or takes too long to count.
    """
    check_demands(program)
    check_consistent(program)
    works: Numbers[Work] = Numbers()
    acts_of: dict[int, int] = {}
    for actor in program.actors:
        work = works.of(actor.work)
        acts_of[work] = acts_of.get(work, 0) + actor.acts_per_step
    whole_ns = steps * sum(work_alone_ns(program, works[work]) * acts for work, acts in acts_of.items())
    if whole_ns >= LARGEST:
        raise PlanError("all acts together take too long to be counted", got=f"{whole_ns / 1e9:.3g} s")
    actors = np.zeros(len(program.actors), dtype=ACTOR)
    actors["stream"] = streams_of_actors(program)
    actors["acts"] = [actor.acts_per_step * steps for actor in program.actors]
    actors["first_act"] = np.cumsum(actors["acts"]) - actors["acts"]
    actors["latency_ns"] = [actor.work.latency_ns for actor in program.actors]
    actors["priority"] = [actor.priority for actor in program.actors]
    members = _members(program, actors)
    reads, writes, returned = _ports(program, actors)
    resources, uses, shares = _uses(program, actors)
    streams, turns = _streams(program, actors, steps)
    published = np.array([register.initial for register in program.registers], dtype=np.int64)
    unwritten = np.ones(len(published), dtype=np.bool_)
    unwritten[writes["register"]] = False
    published[unwritten & (published > 0)] = FOREVER
    return Machine(
        actors=actors,
        reads=reads,
        writes=writes,
        streams=streams,
        resources=resources,
        uses=uses,
        wakes=_wakes(actors, reads, writes),
        members=members,
        turns=turns,
        published=published,
        returned=returned,
        block_end_ns=np.zeros(sum(register.blocks for register in program.registers), dtype=np.int64),
        heap=np.empty(len(actors) + len(resources), dtype=np.int64),
        place=np.full(len(actors) + len(resources), -1, dtype=np.int64),
        due=np.empty(len(actors) + len(resources), dtype=np.int64),
        mover=np.empty(len(uses), dtype=np.int64),
        left=np.empty(len(uses), dtype=np.int64),
        through=np.empty(len(uses) + 1, dtype=np.int64),
        woken=np.arange(len(streams), dtype=np.int64),
        awake=np.ones(len(streams), dtype=np.bool_),
        shares=shares,
    )


def _ranges(records: Records, name: str, counts: Iterable[int]) -> None:
    """Fields `name` and `end_name`: consecutive ranges of so many each."""
    ends = np.fromiter(accumulate(counts), dtype=np.int64, count=len(records))
    records[f"end_{name}"], records[name] = ends, np.concatenate(([0], ends[:-1]))[: len(ends)]


def _members(program: Program, actors: Records) -> Integers:
    """The members of every leader; sets `leader`."""
    together = {found[0]: found for found in rendezvous_members(program).values()}
    lists: list[Sequence[int]] = [
        together.get(index, ()) if actor.rendezvous is not None else (index,)
        for index, actor in enumerate(program.actors)
    ]
    _ranges(actors, "member", map(len, lists))
    members = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
    actors["leader"][members] = np.repeat(np.arange(len(lists)), actors["end_member"] - actors["member"])
    return members


def _ports(program: Program, actors: Records) -> tuple[Records, Records, Integers]:
    """Reads, writes, and a counter of returned pieces per read, those of one register side by side."""
    blocks = np.array([register.blocks for register in program.registers], dtype=np.int64)
    initial = np.array([register.initial for register in program.registers], dtype=np.int64)
    first_block = np.cumsum(blocks) - blocks
    _ranges(actors, "read", (len(actor.reads) for actor in program.actors))
    _ranges(actors, "write", (len(actor.writes) for actor in program.actors))
    found = []
    for ports, kind in (
        ([p for actor in program.actors for p in actor.reads], READ),
        ([p for actor in program.actors for p in actor.writes], WRITE),
    ):
        records = np.zeros(len(ports), dtype=kind)
        register = np.array([port.register for port in ports], dtype=np.int64)
        records["register"], records["share"] = register, [port.acts_per_piece for port in ports]
        records["first_block"], records["end_block"] = first_block[register], (first_block + blocks)[register]
        found.append(records)
    reads, writes = found
    written, counts = np.unique(writes["register"], return_counts=True)
    if (counts > 1).any():
        twice = int(written[counts > 1][0])
        name = program.registers[twice].name
        raise PlanError("a register has two producers", where=name, got=[a.name for a in _writers(program, twice)])
    order = np.argsort(reads["register"], kind="stable")
    reads["slot"][order] = np.arange(len(reads))
    ends = np.cumsum(np.bincount(reads["register"], minlength=len(blocks)))
    writes["end_slot"], writes["slot"] = ends[writes["register"]], np.concatenate(([0], ends))[writes["register"]]
    reads["block"] = reads["first_block"]
    writes["block"] = writes["first_block"] + (initial % blocks)[writes["register"]]
    return reads, writes, np.zeros(len(reads), dtype=np.int64)


def _writers(program: Program, register: int) -> list[Actor]:
    return [actor for actor in program.actors if any(port.register == register for port in actor.writes)]


def _wakes(actors: Records, reads: Records, writes: Records) -> Integers:
    """The streams that the end of an act may let go on: its own, its readers', and those that write what it reads."""
    every = np.arange(len(actors))
    reader = np.repeat(every, actors["end_read"] - actors["read"])
    writer = np.repeat(every, actors["end_write"] - actors["write"])
    of_register = np.full(1 + max(reads["register"].max(initial=-1), writes["register"].max(initial=-1)), -1)
    of_register[writes["register"]] = writer
    producer = of_register[reads["register"]]
    reader, producer = reader[producer >= 0], producer[producer >= 0]
    count = 1 + int(actors["stream"].max(initial=0))
    woken = actors["stream"][np.concatenate((every, reader, producer))]
    pairs = np.unique(np.concatenate((every, producer, reader)) * count + woken)
    _ranges(actors, "wake", np.bincount(pairs // count, minlength=len(actors)))
    return pairs % count


def _uses(program: Program, actors: Records) -> tuple[Records, Records, int]:
    """Resources, what a leader's acts move through each, and how many shares of a nanosecond are counted.

    A demand is one user of a resource however it is split, and none if it is of no bytes.
    """
    number_of = {name: number for number, name in enumerate(sorted(program.resources))}
    demands: list[dict[int, int]] = [{} for _ in program.actors]
    for leader, actor in zip(actors["leader"].tolist(), program.actors, strict=True):
        for name, nbytes in actor.work.demands:
            if nbytes > 0:
                demands[leader][number_of[name]] = demands[leader].get(number_of[name], 0) + nbytes
    rates = [program.resources[name] for name in number_of]
    alone_ns = [max((time_alone_ns(n, rates[r]) for r, n in found.items()), default=0) for found in demands]
    latest = np.zeros(len(actors), dtype=np.int64)
    np.maximum.at(latest, actors["leader"], actors["latency_ns"])
    actors["alone_ns"] = latest + alone_ns
    _ranges(actors, "use", map(len, demands))
    # A stream does one act at a time, so a resource has no more sharers than streams.
    sharing = {(r, stream) for found, stream in zip(demands, actors["stream"].tolist(), strict=True) for r in found}
    room = np.bincount(np.array([r for r, _ in sharing], dtype=np.int64), minlength=len(rates))
    shares = SHARES if max(alone_ns, default=0) * SHARES * int(room.max(initial=0)) < LARGEST else 1
    units = [(r, time_alone_ns(n * shares, rates[r])) for found in demands for r, n in found.items()]
    uses = np.zeros(len(units), dtype=USE)
    uses["resource"], uses["units"] = np.array(units, dtype=np.int64).reshape(-1, 2).T
    resources = np.zeros(len(rates), dtype=RESOURCE)
    resources["room"] = np.cumsum(room) - room
    return resources, uses, shares


def _streams(program: Program, actors: Records, steps: int) -> tuple[Records, Integers]:
    streams = np.zeros(len(program.streams), dtype=STREAM)
    lengths = [len(stream.sequence) for stream in program.streams]
    streams["dynamic"] = [stream.dynamic for stream in program.streams]
    streams["end_turn"] = np.cumsum(lengths)
    streams["first_turn"] = streams["turn"] = streams["end_turn"] - lengths
    turns = np.fromiter(chain.from_iterable(s.sequence for s in program.streams), dtype=np.int64, count=sum(lengths))
    counts = np.zeros(len(streams), dtype=np.int64)
    np.add.at(counts, actors["stream"], actors["acts"])
    streams["end_act"] = np.cumsum(counts)
    streams["act"] = streams["end_act"] - counts
    return streams, turns
