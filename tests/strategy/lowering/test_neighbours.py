"""Registers that a collective takes as one: right behind each other, in use as long as any of them."""

from __future__ import annotations

import numpy as np

from strategy.lowering.memory import ALIGNMENT, allocated, memory_nbytes
from strategy.lowering.neighbours import in_rows
from strategy.lowering.occupancy import Occupancy
from strategy.program.program import ActKind, Actor, BoxingTask, OpTask, Port, Program, Register, Stream
from strategy.sbp.tensor import DType

A = ALIGNMENT


def program() -> Program:
    """a, x and b are written one after another; a and b are exchanged together, and their sums read.

    main   | a | x | b | a + b |        x is over before the exchange
    """
    sizes = {"a": 3, "x": 16, "b": 5, "sum a": 3, "sum b": 5}
    registers = tuple(Register(name, 0, (size,), DType.FLOAT32) for name, size in sizes.items())

    def act(name: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> Actor:
        boxes = ((),) * len(reads), ((),) * len(writes)
        outputs = tuple(range(len(reads), len(reads) + len(writes)))
        task = OpTask(name, tuple(range(len(reads))), outputs, *boxes)
        return Actor(name, 0, ActKind.COMPUTE, tuple(map(Port, reads)), tuple(map(Port, writes)), task=task)

    box = (((0, 8),),)
    bucket = Actor(
        "bucket", 0, ActKind.ALL_REDUCE, (Port(0), Port(2)), (Port(3), Port(4)), 1, 0, task=BoxingTask((0,), box, box)
    )
    actors = (act("a", (), (0,)), act("x", (), (1,)), act("b", (1,), (2,)), bucket, act("end", (3, 4), ()))
    return Program(1, registers, actors, (Stream(0, "compute", (0, 1, 2, 3, 4)),))


def test_rows_are_one_span_in_use_as_long_as_any_member() -> None:
    occupancy = Occupancy(program())
    found = {tuple(block[0] for block, _ in row.places): row for row in in_rows(occupancy, occupancy.of_rank(0))}
    assert set(found) == {(0, 2), (1,), (3, 4)}
    assert (found[0, 2].nbytes, [at for _, at in found[0, 2].places]) == (32, [0, 12])
    assert np.array_equal(found[0, 2].lives, [[0, 7]])
    assert np.array_equal(found[3, 4].lives, [[6, 9]])


def test_they_lie_behind_each_other_to_the_byte() -> None:
    made = allocated(program())
    (a,), (x,), (b,), (first,), (second,) = (register.offsets for register in made.registers)
    assert (b - a, second - first) == (12, 12)
    assert a % A == first % A == x % A == 0
    assert memory_nbytes(made) == (2 * A,)
    assert x in {first, second - 12}, "what is over makes room"
