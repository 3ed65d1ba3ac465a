"""The credit monitor catches what it is for: each kind of corruption of good traces, seeded."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from simulator.engine import run
from strategy.program.program import Program
from strategy.program.timeline import ActRecord
from tests.support.monitor import check_trace
from tests.support.random_programs import live_programs

Corruption = Callable[[Program, list[ActRecord], random.Random], bool]


def read_before_it_is_written(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    """Move an act, with its whole stream before it, to before the producer of its piece has ended."""
    fresh = {a for a, actor in enumerate(program.actors) if actor.reads and actor.rendezvous is None}
    found = [i for i, r in enumerate(records) if r.actor in fresh and r.number == 0 and r.start_ns > 0]
    found = [i for i in found if not any(r.stream == records[i].stream for r in records[:i])]
    registers = [program.registers[p.register] for i in found for p in program.actors[records[i].actor].reads]
    if not found or any(register.initial for register in registers):
        return False
    i = rng.choice(found)
    records[i] = replace(records[i], start_ns=-1, ready_ns=-1)
    return True


def write_into_an_occupied_block(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    """Let the last reader of a full register hold on to its piece for ever."""
    for i, record in enumerate(records):
        for port in program.actors[record.actor].reads:
            register = program.registers[port.register]
            last = record.number == max(r.number for r in records if r.actor == record.actor)
            if register.blocks == 1 and port.acts_per_piece == 1 and not last and not register.initial:
                records[i] = replace(record, end_ns=max(r.end_ns for r in records) + rng.randint(1, 9))
                return True
    return False


def wrong_block(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    found = [i for i, r in enumerate(records) if r.write_blocks]
    i = rng.choice(found)
    blocks = list(records[i].write_blocks)
    blocks[0] += 1
    records[i] = replace(records[i], write_blocks=tuple(blocks))
    return True


def out_of_order(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    """Two neighbours of a static stream swap places, each in the other's time."""
    found = [
        i
        for i in range(len(records) - 1)
        if records[i].stream == records[i + 1].stream
        and records[i].actor != records[i + 1].actor
        and not program.streams[records[i].stream].dynamic
    ]
    if not found:
        return False
    i = rng.choice(found)
    one, two = records[i], records[i + 1]
    records[i] = replace(two, start_ns=one.start_ns, end_ns=one.end_ns)
    records[i + 1] = replace(one, start_ns=two.start_ns, end_ns=two.end_ns)
    return True


def overlap(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    """An act begins before the act ahead of it in its stream has ended."""
    found = [
        i
        for i in range(1, len(records))
        if records[i].stream == records[i - 1].stream and records[i - 1].end_ns > records[i - 1].start_ns
    ]
    i = rng.choice(found)
    records[i] = replace(records[i], start_ns=records[i - 1].end_ns - 1)
    return True


def members_apart(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    """A member of the last rendezvous comes after the others have gone."""
    members = Counter(actor.rendezvous for actor in program.actors)
    met = [program.actors[r.actor].rendezvous for r in records]
    found = [i for i, number in enumerate(met) if number is not None and members[number] > 1]
    if not found:
        return False
    i = max(found, key=lambda i: records[i].end_ns)
    late = records[i].end_ns + rng.randint(1, 100)
    records[i] = replace(records[i], start_ns=late, end_ns=late + 5)
    return True


def lost_act(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    records.pop(rng.randrange(len(records)))
    return True


def act_done_twice(program: Program, records: list[ActRecord], rng: random.Random) -> bool:
    i = rng.randrange(len(records))
    records.insert(i, records[i])
    return True


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (read_before_it_is_written, "read a missing piece"),
        (write_into_an_occupied_block, "wrote an occupied block"),
        (wrong_block, "wrong block"),
        (out_of_order, "out of order in stream"),
        (overlap, "overlap in stream"),
        (members_apart, "do not overlap"),
        (lost_act, "out of order|unfinished"),
        (act_done_twice, "out of order"),
    ],
)
def test_monitor_catches(corrupt: Corruption, complaint: str) -> None:
    tried = 0
    for seed, program in live_programs(40, seed=1000):
        records = list(run(program, 2).timeline.records)
        if corrupt(program, records, random.Random(seed)):
            tried += 1
            problems = check_trace(program, records)
            assert any(word in problem for word in complaint.split("|") for problem in problems), f"seed {seed}"
    assert tried >= 15
