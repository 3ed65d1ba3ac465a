"""Registers of one rank: the memory behind them, one array (or `Rows`) per block, allocated once and never moved.

Registers whose lives are known and do not overlap share memory (see `arena`). A life is an interval of the canonical
order, in which a static stream runs every chunk of a step; so a register may share if one static stream alone touches
it, and its one block is written and read within it in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from executor.arena import Span, place
from executor.kernels.base import Kernels
from strategy.errors import PlanError, did_you_mean
from strategy.ops.base import Array
from strategy.program import Program, Register
from strategy.rows import Rows

ALIGNMENT = 64
"""Blocks begin on a cache line, which the widest vector loads like."""


class Registers:
    """Arrays of all blocks of the registers of `rank`.

    A register that begins with a piece (state) is zero until its owner fills it; others hold what their producer
    writes, before which nobody reads them. `lives` names the registers that may share memory, with [begin, end).
    `shared` holds arrays of state, of one block each, that registers of these names use instead of memory of their own.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        kernels: Kernels,
        lives: Mapping[str, tuple[int, int]] | None = None,
        shared: Mapping[str, Array] | None = None,
    ) -> None:
        self.rank = rank
        self.nbytes = 0
        self._blocks: list[tuple[Array, ...]] = []
        self._index: dict[str, int] = {}
        state = shared or {}
        placed = self._share(program, rank, kernels, lives or {})
        for index, register in enumerate(program.registers):
            mine = register.rank == rank
            if mine and register.name in self._index:
                raise PlanError("two registers of a rank have one name", where=f"rank {rank}", got=register.name)
            if mine and register.initial and register.name in state:
                self._blocks.append((_checked(state[register.name], register),))
            elif mine and index in placed:
                self._blocks.append((placed[index],))
            else:
                self._blocks.append(tuple(_block(register, kernels) for _ in range(register.blocks)) if mine else ())
                self.nbytes += register.nbytes if mine else 0
            if mine:
                self._index[register.name] = index

    def _share(
        self, program: Program, rank: int, kernels: Kernels, lives: Mapping[str, tuple[int, int]]
    ) -> dict[int, Array]:
        """Register -> its block in the arena of this rank."""
        sharing = [i for i, r in enumerate(program.registers) if r.rank == rank and r.name in lives]
        registers = [program.registers[i] for i in sharing]
        assert all(r.blocks == 1 and not r.initial for r in registers), "only single blocks without state share memory"
        spans = [Span(*lives[r.name], -(-r.block_nbytes // ALIGNMENT) * ALIGNMENT) for r in registers]
        offsets, total = place(spans)
        self.nbytes += total
        arena = _aligned(total, kernels, zero=False)
        return {
            index: _shaped(arena[offset : offset + register.block_nbytes], register, kernels)
            for index, offset, register in zip(sharing, offsets, registers, strict=True)
        }

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
    return _shaped(_aligned(register.block_nbytes, kernels, zero=register.initial > 0), register, kernels)


def _checked(array: Array, register: Register) -> Array:
    fits = (array.shape, str(array.dtype), register.blocks) == (register.shape, str(register.dtype), 1)
    if not fits:
        got, expected = f"{array.dtype}{list(array.shape)}", f"{register.dtype}{list(register.shape)}"
        raise PlanError("shared state does not fit its register", where=register.name, got=got, expected=expected)
    return array


def _aligned(nbytes: int, kernels: Kernels, *, zero: bool) -> Array:
    """Bytes that begin on a cache line."""
    raw = (kernels.xp.zeros if zero else kernels.xp.empty)(nbytes + ALIGNMENT, "uint8")
    begin = -kernels.address(raw) % ALIGNMENT
    return raw[begin : begin + nbytes]


def _shaped(raw: Array, register: Register, kernels: Kernels) -> Array:
    """The memory of a block as an array, or as `Rows` where the tensor is ragged."""
    if register.ragged is not None:
        return Rows(kernels.xp, raw, register.spec, register.box)
    assert math.prod(register.shape) * register.dtype.nbytes == register.block_nbytes
    return raw.view(register.dtype.numpy).reshape(register.shape)
