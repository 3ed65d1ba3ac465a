"""Registers of one rank: the memory behind them, one array per block, allocated once and never moved."""

from __future__ import annotations

import math

from executor.kernels.base import Kernels
from strategy.errors import PlanError, did_you_mean
from strategy.ops.base import Array
from strategy.program import Program, Register

ALIGNMENT = 64
"""Blocks begin on a cache line, which the widest vector loads like."""


class Registers:
    """Arrays of all blocks of the registers of `rank`.

    A register that begins with a piece (state) is zero until its owner fills it; others hold what their producer
    writes, before which nobody reads them.
    """

    def __init__(self, program: Program, rank: int, kernels: Kernels) -> None:
        self.rank = rank
        self.nbytes = 0
        self._blocks: list[tuple[Array, ...]] = []
        self._index: dict[str, int] = {}
        for index, register in enumerate(program.registers):
            mine = register.rank == rank
            if mine and register.name in self._index:
                raise PlanError("two registers of a rank have one name", where=f"rank {rank}", got=register.name)
            self._blocks.append(tuple(_block(register, kernels) for _ in range(register.blocks)) if mine else ())
            if mine:
                self._index[register.name] = index
                self.nbytes += register.nbytes

    def block(self, register: int, block: int) -> Array:
        """The array of one block, of the register's shape and dtype."""
        return self._blocks[register][block]

    def blocks(self, register: int) -> tuple[Array, ...]:
        """All blocks of a register; none where another rank holds it."""
        return self._blocks[register]

    def index(self, name: str) -> int:
        """The index in the program of this rank's register `name`.

        Raises:
            PlanError: this rank has no such register.
        """
        if name not in self._index:
            where = f"rank {self.rank}"
            raise PlanError("no such register", where=where, got=name, hint=did_you_mean(name, self._index))
        return self._index[name]

    def names(self) -> tuple[str, ...]:
        """The names of this rank's registers, in program order."""
        return tuple(self._index)


def _block(register: Register, kernels: Kernels) -> Array:
    """One aligned block; zero if it is to hold a piece from the start."""
    nbytes = register.block_nbytes
    raw = (kernels.xp.zeros if register.initial else kernels.xp.empty)(nbytes + ALIGNMENT, "uint8")
    begin = -kernels.address(raw) % ALIGNMENT
    assert math.prod(register.shape) * register.dtype.nbytes == nbytes
    return raw[begin : begin + nbytes].view(str(register.dtype)).reshape(register.shape)
