"""Renaming: never more memory than blocks in turn, the same step, and no two pieces in one place at one time."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from executor.train import program_of
from simulator.engine import run
from simulator.memory_timeline import piece_lives
from strategy.layout.schedule import Schedule
from strategy.lowering import memory
from strategy.lowering.memory import ALIGNMENT, allocated, memory_nbytes
from strategy.lowering.occupancy import Occupancy
from strategy.lowering.renaming import MOST_BLOCKS, renamed
from strategy.passes.training import Training
from strategy.program.program import ActKind, Actor, OpTask, Port, Program, Register, Stream, Work
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, random_plan, request


def pipeline(schedule: Schedule, pp: int, tp: int, m: int, seed: int) -> Program:
    training = Training(global_batch=m, num_micro_batches=m)
    config = config_of(training, pp=pp, tp=tp, schedule=schedule)
    return program_of(random_plan(request(pp * tp, training), config, random.Random(seed)))


CASES = [
    (schedule, pp, tp, m, seed)
    for seed, (schedule, pp, tp, m) in enumerate(
        (schedule, pp, tp, m)
        for schedule in (Schedule.INTERLEAVED, Schedule.ZBV, Schedule.ZB_H1, Schedule.ONE_F_ONE_B)
        for pp, tp in ((2, 1), (2, 2))
        for m in (4, 6, 8)
    )
]


def test_other_blocks_are_in_use_as_if_nothing_were_known() -> None:
    """What is known of acts is taken over from the program that is renamed."""
    changed = 0
    for case in CASES[::4]:
        before = Occupancy(pipeline(*case))
        for rank in range(len(before.registers_of)):
            before.of_rank(rank)
        program = renamed(before, single=True)
        changed += program.registers != before.program.registers
        taken_over, anew = before.with_blocks(program), Occupancy(program)
        for rank in range(len(anew.registers_of)):
            ours, theirs = taken_over.of_rank(rank), anew.of_rank(rank)
            assert [one.blocks for one in ours] == [one.blocks for one in theirs]
            assert [one.lives.tolist() for one in ours] == [one.lives.tolist() for one in theirs]
    assert changed >= 3


def test_it_takes_less_memory_and_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Counter[str]()
    for schedule, pp, tp, m, seed in CASES[::3] + CASES[1::3]:
        program = pipeline(schedule, pp, tp, m, seed)
        with monkeypatch.context() as patched:
            patched.setattr(memory, "renamed", lambda occupancy, **_: occupancy.program)
            in_turn = pipeline(schedule, pp, tp, m, seed)
        ours, theirs = memory_nbytes(program), memory_nbytes(in_turn)
        assert all(mine <= other for mine, other in zip(ours, theirs, strict=True)), (schedule, pp, tp, m)
        own = [one.blocks != other.blocks for one, other in zip(program.registers, in_turn.registers, strict=True)]
        times = [
            [(record.actor, record.number, record.start_ns, record.end_ns) for record in run(one, 3).timeline.records]
            for one in (program, in_turn)
        ]
        assert times[0] == times[1], (schedule, pp, tp, m)
        seen["renamed"] += any(own)
        seen["less"] += ours != theirs
    print(dict(seen))
    assert seen["renamed"] >= 4, seen
    assert seen["renamed"] == seen["less"]


@pytest.mark.parametrize(("schedule", "pp", "tp", "m", "seed"), long_but(CASES, *range(0, len(CASES), 3)))
def test_no_two_pieces_are_in_one_place_at_one_time(schedule: Schedule, pp: int, tp: int, m: int, seed: int) -> None:
    """However long acts take: as priced, and as drawn."""
    program, draw = pipeline(schedule, pp, tp, m, seed), random.Random(seed)
    check_places(program)
    for _ in range(3):
        check_places(with_durations(program, draw))


def with_durations(program: Program, draw: random.Random) -> Program:
    """Those who meet take equally long."""
    took: dict[object, Work] = {}
    works = [
        took.setdefault(i if actor.rendezvous is None else f"meeting {actor.rendezvous}", Work(draw_ns(draw)))
        for i, actor in enumerate(program.actors)
    ]
    actors = [replace(actor, work=work) for actor, work in zip(program.actors, works, strict=True)]
    return replace(program, actors=tuple(actors))


def draw_ns(draw: random.Random) -> int:
    return round(10 ** draw.uniform(0, 6))


def check_places(program: Program) -> None:
    written_over = {
        (ports[task.inputs[at]].register, ports[task.outputs[0]].register)
        for actor in program.actors
        if isinstance(task := actor.task, OpTask) and task.outputs
        for ports in [(*actor.reads, *actor.writes)]
        for at in task.in_place
    }
    places = []
    for life in piece_lives(program, run(program, 3).timeline):
        register = program.registers[life.register]
        if register.offsets and register.space is Space.DEVICE:
            begin = register.offsets[life.piece % register.blocks]
            places.append((register.rank, begin, begin + register.block_nbytes, life))
    places.sort(key=lambda place: place[:2])
    for i, (rank, begin, end, life) in enumerate(places):
        for other_rank, other_begin, _, other in places[i + 1 :]:
            if other_rank != rank or other_begin >= end:
                break
            if life.begin_ns < other.end_ns and other.begin_ns < life.end_ns:
                pair = {(life.register, other.register), (other.register, life.register)}
                assert begin == other_begin, (program.registers[life.register], program.registers[other.register])
                assert pair & written_over, (program.registers[life.register], program.registers[other.register])


def register(name: str, blocks: int, **other: int) -> Register:
    return Register(name, 0, (ALIGNMENT // 4,), DType.FLOAT32, blocks, **other)


def actor(name: str, reads: tuple[int, ...], writes: tuple[int, ...], m: int) -> Actor:
    return Actor(name, 0, ActKind.COMPUTE, tuple(map(Port, reads)), tuple(map(Port, writes)), m)


def blocks(m: int, number: int = 2, *, single: bool = False, **writer: Any) -> list[int]:
    """Of two registers that are written and read `m` times a step, and one of state, as renamed."""
    registers = (register("x", number), register("y", number), register("state", 2, initial=1))
    first = replace(actor("a", (), (0,), m), **writer)
    actors = first, actor("b", (0,), (1,), m), actor("c", (1, 2), (), m)
    program = Program(1, registers, actors, (Stream(0, "main", (0, 1, 2) * m),), num_micro_batches=m)
    return [found.blocks for found in renamed(Occupancy(program), single=single).registers]


def test_single_blocks_become_several_where_that_is_wanted() -> None:
    assert blocks(5, 1) == [1, 1, 2]
    assert blocks(5, 1, single=True) == [5, 5, 2]
    assert blocks(5, 1, single=True, kind=ActKind.ALL_GATHER) == [1, 5, 2]  # it might be made long before it is read
    assert blocks(1, 1, single=True) == [1, 1, 2]


def test_every_micro_batch_has_its_own_block_but_of_very_many() -> None:
    assert blocks(5) == [5, 5, 2]
    assert blocks(3 * MOST_BLOCKS) == [MOST_BLOCKS, MOST_BLOCKS, 2]
    assert blocks(131) == [2, 2, 2]  # nothing divides them


def test_what_has_no_place_in_the_order_of_a_rank_keeps_its_blocks() -> None:
    assert blocks(5, kind=ActKind.TRANSFER) == [2, 5, 2]
    assert blocks(5, writes=(Port(0, 5),)) == [2, 5, 2]
    over = OpTask("a", (0,), (1,), ((),), ((),), in_place=(0,))
    registers = (register("x", 2), register("y", 2))
    loads = replace(actor("a", (), (0,), 4), kind=ActKind.LOAD)
    actors = loads, replace(actor("b", (0,), (1,), 4), task=over), actor("c", (1,), (), 4)
    program = Program(1, registers, actors, (Stream(0, "main", (0, 1, 2) * 4),), num_micro_batches=4)
    assert [found.blocks for found in renamed(Occupancy(program)).registers] == [2, 2]  # what may be one stays alike
    assert allocated(program).registers[0].blocks == 2
