"""Planned memory: what the executor allocates, never less than what credits hold, and named tensor by tensor."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from executor.train import program_of
from simulator.engine import run
from simulator.memory_timeline import live_peaks_nbytes
from strategy.base.errors import InfeasibleError
from strategy.layout.arrangement import arrange
from strategy.layout.schedule import Schedule
from strategy.lowering.memory import ALIGNMENT, aligned, allocated, fullest, memory_nbytes
from strategy.lowering.occupancy import num_ranks
from strategy.passes.training import Training
from strategy.program.program import ActKind, Actor, OpTask, Port, Program, Register, Stream
from strategy.sbp.tensor import DType
from tests.benchmarks.act_overhead import transfer
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, plan_by_rules, random_plan, request

A = ALIGNMENT


def test_blocks_are_rounded_up_to_cache_lines() -> None:
    assert [aligned(nbytes) for nbytes in (0, 1, A, A + 1)] == [0, A, A, 2 * A]


def test_a_rank_that_holds_state_alone_has_nothing_to_place() -> None:
    program, _ = transfer(2)
    assert [register.offsets for register in program.registers] == [(), (0, A)]


def register(name: str, size: int, *, blocks: int = 1, initial: int = 0) -> Register:
    return Register(name, 0, (size * A // 4,), DType.FLOAT32, blocks, initial)


def actor(
    name: str, reads: tuple[int, ...], writes: tuple[int, ...], *, acts: int = 1, in_place: bool = False
) -> Actor:
    inputs, outputs = tuple(range(len(reads))), tuple(range(len(reads), len(reads) + len(writes)))
    task = OpTask(name, inputs, outputs, ((),) * len(inputs), ((),) * len(outputs), inputs if in_place else ())
    return Actor(name, 0, ActKind.COMPUTE, tuple(map(Port, reads)), tuple(map(Port, writes)), acts, task=task)


def offsets(program: Program) -> list[tuple[int, ...]]:
    """In cache lines."""
    return [tuple(offset // A for offset in found.offsets) for found in allocated(program).registers]


def chain(*, in_place: bool) -> Program:
    """a -> b -> c -> d, each reading what the one before wrote; the first two tensors are larger."""
    registers = (register("a", 3), register("b", 3), register("c", 1))
    actors = (
        actor("a", (), (0,)),
        actor("b", (0,), (1,), in_place=in_place),
        actor("c", (1,), (2,)),
        actor("d", (2,), ()),
    )
    return Program(1, registers, actors, (Stream(0, "compute", (0, 1, 2, 3)),))


def test_a_block_is_used_again_once_it_has_been_read() -> None:
    assert offsets(chain(in_place=False)) == [(0,), (3,), (0,)]
    assert memory_nbytes(allocated(chain(in_place=False))) == (6 * A,)


def test_the_first_rank_that_holds_too_much_is_enough_to_know() -> None:
    """Of three, of which the last holds most: no rank is looked at after one that has too little memory."""
    one = chain(in_place=False)
    size = len(one.registers)
    registers = [replace(found, rank=rank) for rank in range(3) for found in one.registers]
    registers[-2] = replace(registers[-2], shape=(50 * A // 4,))
    actors = [
        replace(
            found,
            rank=rank,
            reads=tuple(Port(port.register + rank * size) for port in found.reads),
            writes=tuple(Port(port.register + rank * size) for port in found.writes),
        )
        for rank in range(3)
        for found in one.actors
    ]
    streams = tuple(Stream(rank, "compute", tuple(range(4 * rank, 4 * rank + 4))) for rank in range(3))
    program, asked = Program(3, tuple(registers), tuple(actors), streams), list[int]()

    def most(limit: int) -> Callable[[int], int]:
        return lambda rank: (asked.append(rank), limit)[1]

    assert allocated(program, most_nbytes=most(53 * A)) == allocated(program)
    assert asked == [0, 1, 2]
    for limit, ranks, needed in ((52 * A, [0, 1, 2], 53 * A), (5 * A, [0], 6 * A)):
        asked.clear()
        with pytest.raises(InfeasibleError, match=f"{needed} bytes per device needed, {limit} are there") as caught:
            allocated(program, most_nbytes=most(limit))
        assert (asked, caught.value.smallest_limit) == (ranks, needed)


def test_the_last_reader_writes_in_place() -> None:
    assert offsets(chain(in_place=True)) == [(0,), (0,), (3,)]
    assert memory_nbytes(allocated(chain(in_place=True))) == (4 * A,)


def test_nothing_is_written_over_what_is_still_to_be_read() -> None:
    program = chain(in_place=True)
    again = actor("d", (0, 2), ())
    program = Program(1, program.registers, (*program.actors[:3], again), program.streams)
    a, b, _ = offsets(program)
    assert a != b


@pytest.mark.parametrize(
    ("turns", "in_place"),
    [
        ("start b c d start b c d", {"b", "c"}),  # what is fetched next is so behind all that was made of the last
        ("start b c start d b c d", {"b"}),  # before that has been read, but for what b made
        ("start b start c d b c d", {"c"}),  # before c has read that
    ],
)
def test_what_is_written_anew_early_is_taken_over_by_nobody_who_is_not_done(turns: str, in_place: set[str]) -> None:
    """Another stream fetches x as soon as `start` lets it: b writes a over x, c writes c over a, d reads that."""
    registers = tuple(register(name, 1) for name in ("go", "x", "a", "c"))
    actors = (
        actor("start", (), (0,), acts=2),
        actor("fetch", (0,), (1,), acts=2),
        actor("b", (1,), (2,), acts=2, in_place=True),
        actor("c", (2,), (3,), acts=2, in_place=True),
        actor("d", (3,), (), acts=2),
    )
    at = {one.name: i for i, one in enumerate(actors)}
    streams = (Stream(0, "compute", tuple(at[turn] for turn in turns.split())), Stream(0, "comm", (1, 1)))
    _, x, a, c = offsets(Program(1, registers, actors, streams))
    assert {name for name, one, other in (("b", x, a), ("c", a, c)) if one == other} == in_place


def test_state_lies_by_itself_and_all_the_time() -> None:
    weight, scratch = register("weight", 2, initial=1), register("scratch", 1)
    program = allocated(Program(1, (weight, scratch), (actor("use", (0,), (1,)),), (Stream(0, "compute", (0,)),)))
    assert [found.offsets for found in program.registers] == [(), (0,)]
    assert memory_nbytes(program) == (3 * A,)
    assert fullest(program, 0).tensors == (("weight", 2 * A), ("scratch", A))


def test_what_a_dynamic_stream_touches_is_in_use_all_the_time() -> None:
    program = chain(in_place=False)
    streams = (Stream(0, "load", (0,), dynamic=True), Stream(0, "compute", (1, 2, 3)))
    assert memory_nbytes(allocated(Program(1, program.registers, program.actors, streams))) == (7 * A,)
    a, b, c = offsets(Program(1, program.registers, program.actors, streams))
    assert a == (0,)
    assert {b, c} == {(3,), (6,)}


def test_blocks_that_rotate_are_in_use_whenever_one_of_them_is() -> None:
    """Three pieces a step in two blocks: in the next step they have changed places."""
    registers = (register("x", 1, blocks=2), register("y", 1))
    actors = (actor("write", (), (0,), acts=3), actor("read", (0,), (1,), acts=3))
    program = allocated(Program(1, registers, actors, (Stream(0, "compute", (0, 1, 0, 1, 0, 1)),)))
    assert len({*program.registers[0].offsets, *program.registers[1].offsets}) == 3


def beside(*, waits: bool) -> Program:
    """A second stream reads what b wrote; d, if it `waits`, reads what that made, so that b is read before e writes."""
    registers = (register("b", 2), register("r", 1), register("e", 2))
    actors = (
        actor("b", (), (0,)),
        actor("x", (0,), (1,)),
        actor("d", (1,) if waits else (), ()),
        actor("e", (), (2,)),
        actor("f", (2,), ()),
        actor("g", () if waits else (1,), ()),
    )
    return Program(1, registers, actors, (Stream(0, "compute", (0, 2, 3, 4, 5)), Stream(0, "comm", (1,))))


def test_streams_share_blocks_where_one_has_waited_for_the_other() -> None:
    b, _, e = offsets(beside(waits=True))
    assert b == e
    b, _, e = offsets(beside(waits=False))
    assert b != e


OF_ONE_STAGE = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)
"""With one stage, schedules differ in whether weights' gradients wait."""


@pytest.mark.parametrize("backend", long_but(["numpy", "cupy"], 1))
@pytest.mark.parametrize(
    ("schedule", "degrees"),
    [
        *long_but(((schedule, degrees) for schedule in Schedule for degrees in ((1, 2, 2), (2, 1, 2))), *(0, 5, 8)),
        *((schedule, degrees) for schedule in OF_ONE_STAGE for degrees in ((2, 1, 1), (1, 3, 1))),
    ],
)
def test_plans_hold_no_more_than_planned(backend: str, schedule: str, degrees: tuple[int, int, int]) -> None:
    dp, tp, pp = degrees
    training = Training(global_batch=4 * dp, num_micro_batches=4)
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule)
    plan = random_plan(request(dp * tp * pp, training, backend=backend), config, random.Random(0))
    program = program_of(plan)
    assert plan.claims.peak_memory_bytes == memory_nbytes(program)
    found = live_peaks_nbytes(program, run(program, 3).timeline)
    assert all(f <= p for f, p in zip(found, plan.claims.peak_memory_bytes, strict=True))
    for rank, planned in enumerate(plan.claims.peak_memory_bytes):
        mine = [register for register in program.registers if register.rank == rank]
        assert planned < sum(register.blocks * aligned(register.block_nbytes) for register in mine)
        assert fullest(program, rank).nbytes <= planned


def test_the_peak_names_its_tensors() -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, dp=2), ("data", "tensor"))
    program = program_of(plan)
    for rank in range(2):
        found = fullest(program, rank)
        assert found.nbytes <= plan.claims.peak_memory_bytes[rank] <= 1.1 * found.nbytes
        assert sum(nbytes for _, nbytes in found.tensors) == found.nbytes
        assert [nbytes for _, nbytes in found.tensors] == sorted((n for _, n in found.tensors), reverse=True)
        state = {register.name for register in program.registers if register.rank == rank and register.initial}
        assert state < {name for name, _ in found.tensors}


@pytest.mark.parametrize(("schedule", "in_flight"), [("gpipe", [4, 4]), ("1f1b", [2, 1])])
def test_what_backward_needs_is_held_per_micro_batch_in_flight(schedule: str, in_flight: list[int]) -> None:
    training = Training(global_batch=4, num_micro_batches=4)
    plan = plan_by_rules(request(2, training), config_of(training, pp=2, schedule=schedule), ("data", "tensor"))
    arrangement = arrange(plan.graph, plan.layout, plan.pipeline)
    blocks = {tensor.name: tensor.lifetime.blocks for tensor in arrangement.tensors}
    assert [blocks[f"layers.{layer}.mlp.fc1.bias_add"] for layer in range(2)] == in_flight


def test_ranks_are_counted_up_to_the_last_that_has_anything() -> None:
    training = Training(global_batch=4)
    program = program_of(plan_by_rules(request(2, training), config_of(training, dp=2), ("data", "tensor")))
    assert num_ranks(program) == num_ranks(replace(program, registers=(), streams=())) == 2
    assert num_ranks(replace(program, ranks=0)) == 2
    assert num_ranks(replace(program, ranks=0, registers=())) == 2
    assert num_ranks(replace(program, ranks=0, registers=(), streams=())) == 0
