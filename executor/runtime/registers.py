"""Registers of one rank: the memory behind them, one array (or `Rows`) per block, allocated once and never moved.

The program says where every block lies (`strategy.lowering.memory`): in the pool of the rank, or, where it is state,
behind it. In each memory, all of it is one allocation, and nothing else is allocated here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from executor.runtime.kernels.base import Kernels
from strategy.base.errors import EnvironmentLacks, InternalError, PlanError, did_you_mean
from strategy.graph.ops.base import Array
from strategy.lowering.memory import aligned, pool_nbytes, state_nbytes
from strategy.program.program import Program, Register
from strategy.sbp.placement import Space
from strategy.sbp.ragged import Rows


class Registers:
    """Arrays of all blocks of the registers of `rank` of an allocated program.

    A register that begins with a piece (state) is zero until its owner fills it; others hold what their producer
    writes, before which nobody reads them. `shared` holds arrays of state, of one block each, that registers of these
    names use instead of memory of their own.
    """

    def __init__(
        self, program: Program, rank: int, kernels: Kernels, shared: Mapping[str, Array] | None = None
    ) -> None:
        self.rank = rank
        self._blocks: list[tuple[Array, ...]] = []
        self._index: dict[str, int] = {}
        self._program = program
        mine = [register for register in program.registers if register.rank == rank]
        self._allocated = {
            space: pool_nbytes([register for register in mine if register.space is space]) for space in Space
        }
        own = {
            space: state_nbytes([r for r in mine if r.space is space and r.name not in (shared or {})])
            for space in Space
        }
        begin_of_state = dict(self._allocated)
        self._allocated = {space: nbytes + own[space] for space, nbytes in self._allocated.items()}
        arenas = {space: self._arena(space, kernels) for space in Space}
        self._pools = pools = {space: arenas[space][:nbytes] for space, nbytes in begin_of_state.items()}
        for index, register in enumerate(program.registers):
            if register.rank != rank:
                self._blocks.append(())
                continue
            if register.name in self._index:
                raise PlanError("two registers of a rank have one name", where=f"rank {rank}", got=register.name)
            self._index[register.name] = index
            given = (shared or {}).get(register.name) if register.initial else None
            if given is not None:
                self._blocks.append((_checked(given, register),))
            elif register.initial:
                nbytes, begin = aligned(register.block_nbytes), begin_of_state[register.space]
                begin_of_state[register.space] += nbytes * register.blocks
                begins = [begin + block * nbytes for block in range(register.blocks)]
                places = [arenas[register.space][at : at + nbytes] for at in begins]
                for place in places:
                    place.fill(0)
                self._blocks.append(tuple(_shaped(place, register, kernels) for place in places))
            else:
                if len(register.offsets) != register.blocks:
                    raise InternalError(f"{register.name} has no place in memory")
                pool = pools[register.space]
                self._blocks.append(tuple(_shaped(pool[offset:], register, kernels) for offset in register.offsets))

    def _arena(self, space: Space, kernels: Kernels) -> Array:
        """All of the rank's memory in one place.

        Raises:
            EnvironmentLacks: there is not so much left, and what most of it is for.
        """
        nbytes = self._allocated[space]
        try:
            return allocate_bytes(nbytes, kernels, space)
        except MemoryError as error:
            mine = [(i, r) for i, r in enumerate(self._program.registers) if (r.rank, r.space) == (self.rank, space)]
            index, largest = max(mine, key=lambda pair: pair[1].nbytes)
            writers = (a.name for a in self._program.actors if any(port.register == index for port in a.writes))
            raise EnvironmentLacks(
                f"rank {self.rank}: the plan needs {nbytes} bytes of the {space}'s memory for registers, and there are "
                f"not so many left ({error}); the largest register is {largest.name}, {largest.nbytes} bytes, written "
                f"by {next(writers, 'nobody')}; search with a lower memory limit, or free the memory that others hold"
            ) from error

    @property
    def nbytes(self) -> int:
        """What was allocated on the device."""
        return self._allocated[Space.DEVICE]

    @property
    def host_nbytes(self) -> int:
        """What was allocated in the host's memory."""
        return self._allocated[Space.HOST]

    def block(self, register: int, block: int) -> Array:
        """The array of one block, of the register's shape and dtype."""
        return self._blocks[register][block]

    def joined(self, registers: Sequence[int]) -> Array:
        """The blocks of registers that lie next to each other, of one block each, as one flat array."""
        found = [self._program.registers[index] for index in registers]
        end = begin = found[0].offsets[0]
        for register in found:
            if register.offsets != (end,):
                raise InternalError(f"{register.name} does not lie behind what it is exchanged with")
            end += register.block_nbytes
        return self._pools[found[0].space][begin:end].view(found[0].dtype.numpy)

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


def _checked(array: Array, register: Register) -> Array:
    fits = (array.shape, str(array.dtype), register.blocks) == (register.shape, str(register.dtype), 1)
    if not fits:
        got, expected = f"{array.dtype}{list(array.shape)}", f"{register.dtype}{list(register.shape)}"
        raise PlanError("shared state does not fit its register", where=register.name, got=got, expected=expected)
    return array


BASE_ALIGNMENT = 256
"""Of all memory of a rank: that of CUDA's allocations, and a multiple of that of blocks."""


def allocate_bytes(nbytes: int, kernels: Kernels, space: Space) -> Array:
    """Bytes that begin at a multiple of `BASE_ALIGNMENT`; the allocator gives what it takes to find one."""
    if space is Space.HOST:
        raw: Array = kernels.host_like(np.empty(nbytes + BASE_ALIGNMENT, np.uint8))
        begin = -int(raw.__array_interface__["data"][0]) % BASE_ALIGNMENT
    else:
        raw = kernels.xp.empty(nbytes + BASE_ALIGNMENT, "uint8")
        begin = -kernels.address(raw) % BASE_ALIGNMENT
    return raw[begin : begin + nbytes]


def _shaped(raw: Array, register: Register, kernels: Kernels) -> Array:
    """The memory of a block as an array, or as `Rows` where the tensor is ragged."""
    if register.ragged is not None:
        xp = np if register.space is Space.HOST else kernels.xp
        return Rows(xp, raw[: register.block_nbytes], register.spec, register.box)
    return raw[: register.block_nbytes].view(register.dtype.numpy).reshape(register.shape)
