"""Blocks: shapes, alignment, zeros for state, and nothing for other ranks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from executor.runtime.kernels.base import open_kernels
from executor.runtime.kernels.numpy import NumpyKernels
from executor.runtime.registers import Registers
from strategy.base.errors import EnvironmentLacks, PlanError
from strategy.lowering.memory import ALIGNMENT, allocated, memory_nbytes
from strategy.program.program import ActKind, Actor, Port, Program, Register, Stream
from strategy.sbp.tensor import DType


def program_of(*registers: Register) -> Program:
    return allocated(Program(2, registers, (), ()))


def test_blocks_of_one_rank() -> None:
    program = program_of(
        Register("a", 0, (3, 5), DType.FLOAT32, blocks=3),
        Register("b", 1, (7,), DType.INT64),
        Register("c", 0, (), DType.FLOAT64, initial=1),
    )
    registers = Registers(program, 0, open_kernels("numpy"))
    assert registers.nbytes == 3 * ALIGNMENT + ALIGNMENT == memory_nbytes(program)[0]
    assert registers.names() == ("a", "c")
    assert registers.index("c") == 2
    assert len(registers.blocks(0)) == 3
    assert registers.blocks(1) == ()
    for block in registers.blocks(0):
        assert block.shape == (3, 5)
        assert block.dtype == np.float32
        assert block.flags.c_contiguous
        assert block.__array_interface__["data"][0] % ALIGNMENT == 0
    assert not np.shares_memory(registers.block(0, 0), registers.block(0, 1))
    assert registers.block(2, 0).shape == ()
    assert registers.block(2, 0) == 0.0


def test_all_memory_of_a_rank_is_one_allocation_at_a_multiple_of_256_bytes() -> None:
    """State lies behind the pool; what another worker's register already holds takes no place."""
    program = program_of(
        Register("a", 0, (70,), DType.FLOAT32, blocks=2),
        Register("w", 0, (5,), DType.FLOAT32, initial=1),
        Register("none", 0, (0,), DType.FLOAT32, initial=1),
        Register("v", 0, (3,), DType.FLOAT64, blocks=2, initial=2),
    )
    first = Registers(program, 0, open_kernels("numpy"))
    places = [block.__array_interface__["data"][0] for i in (0, 1, 3) for block in first.blocks(i)]
    assert [place - places[0] for place in places] == [0, 320, 640, 704, 768]
    assert places[0] % 256 == 0
    assert [block.shape for block in first.blocks(2)] == [(0,)]
    assert all(not block.any() for i in (1, 3) for block in first.blocks(i))
    second = Registers(program, 0, open_kernels("numpy"), {"w": first.block(1, 0)})
    assert np.shares_memory(second.block(1, 0), first.block(1, 0))
    assert second.nbytes == first.nbytes - ALIGNMENT == memory_nbytes(program)[0] - ALIGNMENT


class FullDevice(NumpyKernels):
    """A device without memory."""

    host = False
    xp = SimpleNamespace(empty=lambda *_: (_ for _ in ()).throw(MemoryError("0 bytes left")))


def test_too_little_memory_names_register_actor_and_the_planned_figure() -> None:
    registers = (Register("small", 0, (3,), DType.FLOAT32), Register("large", 0, (1000,), DType.FLOAT32, blocks=2))
    actors = (Actor("make", 0, ActKind.COMPUTE, (), (Port(0), Port(1))),)
    program = allocated(Program(1, registers, actors, (Stream(0, "compute", (0,)),)))
    wanted = memory_nbytes(program)[0]
    told = rf"rank 0.* needs {wanted} bytes of the device.*0 bytes left.* is large, 8000 bytes, written by make"
    with pytest.raises(EnvironmentLacks, match=told):
        Registers(program, 0, FullDevice())


def test_unknown_and_doubled_names() -> None:
    registers = Registers(program_of(Register("weight", 0, (1,), DType.FLOAT32)), 0, open_kernels("numpy"))
    with pytest.raises(PlanError, match="did you mean 'weight'"):
        registers.index("weigh")
    twice = Register("weight", 0, (1,), DType.FLOAT32)
    with pytest.raises(PlanError, match="one name"):
        Registers(program_of(twice, twice), 0, open_kernels("numpy"))
