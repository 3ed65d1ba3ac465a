"""Blocks: shapes, alignment, zeros for state, and nothing for other ranks."""

from __future__ import annotations

import numpy as np
import pytest

from executor.runtime.kernels.base import open_kernels
from executor.runtime.registers import Registers
from strategy.base.errors import PlanError
from strategy.lowering.memory import ALIGNMENT, allocated, memory_nbytes
from strategy.program.program import Program, Register
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


def test_unknown_and_doubled_names() -> None:
    registers = Registers(program_of(Register("weight", 0, (1,), DType.FLOAT32)), 0, open_kernels("numpy"))
    with pytest.raises(PlanError, match="did you mean 'weight'"):
        registers.index("weigh")
    twice = Register("weight", 0, (1,), DType.FLOAT32)
    with pytest.raises(PlanError, match="one name"):
        Registers(program_of(twice, twice), 0, open_kernels("numpy"))
