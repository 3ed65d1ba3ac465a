"""Memory: where every block of a rank lies, decided here alone, and what fills it.

In the memory of its device, and likewise in that of its host, a rank holds *state* (registers that begin with a
piece), every block of it by itself, and one *pool* for the rest, in which blocks share places over time (`occupancy`,
`arena`); those that a collective takes as one lie in one piece (`neighbours`). Where blocks in turn leave gaps, every
micro-batch may have its own (`renaming`). The plan's peak is what the executor allocates, to the byte: registers only.
Scratch space of kernels and the process itself are not in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError
from strategy.hardware.cluster import Cluster
from strategy.lowering.arena import Arena, Span, usage
from strategy.lowering.neighbours import NeighbourRow, in_rows
from strategy.lowering.occupancy import Block, Occupancy, Occupant, num_ranks
from strategy.lowering.renaming import renamed
from strategy.program.program import Actor, OpTask, Program, Register, neighbours
from strategy.sbp.placement import Space

ALIGNMENT = 64
"""Blocks begin on a cache line, which the widest vector loads like, and fill it."""
WIDE = 0.005, 0.01
"""Parts of a pool from which on its gaps are worth to rename registers of several blocks, and those of one."""

FEW_ORDERS = 1
"""Orders to place blocks in that tell which of several ways to rename them is the best: others take up to 1 % less."""
MANY_BLOCKS = 12_000
"""Of more than so many blocks an order takes some tenths of a second: the first has to do."""


@dataclass(frozen=True, slots=True)
class Fill:
    """What one rank holds when it holds most: the bytes that no placement saves, and the tensors.

    The largest come first, and of equal ones those that are first in the program.
    """

    nbytes: int
    tensors: tuple[tuple[str, int], ...]


def fullest_rank(cluster: Cluster, peaks: Sequence[int], limit: int) -> tuple[int, int]:
    """(bytes held, bytes that may be held) of the rank that has least to spare, or lacks most; `peaks` are by rank."""
    held = {(cluster.memory_limit_bytes(limit, (rank,)), peak) for rank, peak in enumerate(peaks)}
    most, needed = min(held, key=lambda pair: pair[0] - pair[1])
    return needed, most


def aligned(nbytes: int) -> int:
    """Bytes that a block takes up."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def allocated(
    program: Program, budget: Budget = UNLIMITED, *, most_nbytes: Callable[[int], int] | None = None
) -> Program:
    """The program with the offset of every block in the memory of its rank; alike ranks have the same offsets.

    Args:
        program: its registers have no offsets yet.
        budget: of the time that it may take.
        most_nbytes: rank -> what may be held on its device, to look no further once one holds more.

    Raises:
        OutOfTimeError: the budget was over before it was done.
        InfeasibleError: a rank holds more than `most_nbytes`, with what that one needs.
    """
    occupancy = Occupancy(program)
    own = dict[int, Occupancy]()
    known: dict[Hashable, tuple[tuple[int, ...], ...]] = {}
    registers = list(program.registers)
    for rank, mine in enumerate(occupancy.registers_of):
        if not mine:
            continue
        budget.check()
        stacked, height = _stacked(occupancy, rank)
        key = _shape(occupancy, rank, stacked)
        if key not in known:
            known[key] = _offsets(occupancy, own, rank, stacked, budget)
        for register, above in zip(mine, known[key], strict=True):
            bottom = height[registers[register].space]
            found = stacked.get(register) or tuple([bottom + offset for offset in above])
            registers[register] = registers[register].at(found)
        if most_nbytes is not None:
            held = [registers[i] for i in mine if registers[i].space is Space.DEVICE]
            nbytes, most = pool_nbytes(held) + state_nbytes(held), most_nbytes(rank)
            if nbytes > most:
                said = f"{nbytes} bytes per device needed, {most} are there"
                raise InfeasibleError(f"the layout does not fit: {said}", smallest_limit=nbytes)
    return replace(program, registers=tuple(registers))


def _offsets(
    occupancy: Occupancy, own: dict[int, Occupancy], rank: int, stacked: Container[int], budget: Budget
) -> tuple[tuple[int, ...], ...]:
    """Where the blocks of a rank's registers begin that are neither state nor stacked, register by register.

    Few orders tell whether blocks shall be renamed; of the best of all ways more are tried. `own` are occupancies of
    renamed blocks, those of several first, which are made once.
    """
    mine = occupancy.registers_of[rank]
    best = _Pools.of(occupancy, rank, stacked, budget)
    best.try_orders(FEW_ORDERS)
    tried = [best.blocks]
    for single, wide in enumerate(WIDE if occupancy.shortenings[rank] is None else ()):
        uneven = not single and _in_uneven_turns(occupancy, mine, stacked)
        if (best.gaps_nbytes <= wide * best.nbytes and not uneven) or best.are_many:
            break
        if single not in own:
            own[single] = occupancy.with_blocks(renamed(occupancy, single=bool(single)))
        if _blocks(own[single], rank) not in tried:
            pools = _Pools.of(own[single], rank, stacked, budget)
            pools.try_orders(FEW_ORDERS)
            tried.append(pools.blocks)
            best = min(best, pools, key=lambda one: one.nbytes)
    budget.check()
    best.try_orders(0 if best.are_many else sys.maxsize)
    return best.offsets(stacked)


def _blocks(occupancy: Occupancy, rank: int) -> list[int]:
    return [occupancy.program.registers[i].blocks for i in occupancy.registers_of[rank]]


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """What shares places over time on a rank, by memory: neither state nor stacked."""

    occupancy: Occupancy
    rank: int
    rows: tuple[tuple[Sequence[NeighbourRow], Arena], ...]

    @staticmethod
    def of(occupancy: Occupancy, rank: int, stacked: Container[int], budget: Budget) -> _Pools:
        """Before anything has a place."""
        occupants = [one for one in occupancy.of_rank(rank, budget) if one.blocks[0][0] not in stacked]
        budget.check()
        found = []
        for space in Space:
            rows = in_rows(occupancy, _in(occupancy.program, occupants, space))
            found.append((rows, Arena([Span(row.lives, aligned(row.nbytes)) for row in rows])))
        return _Pools(occupancy, rank, tuple(found))

    @property
    def are_many(self) -> bool:
        """Whether there are very many blocks to place."""
        return sum(len(rows) for rows, _ in self.rows) > MANY_BLOCKS

    def try_orders(self, tries: int) -> None:
        """Try further orders, so many in each memory."""
        for _, arena in self.rows:
            arena.try_orders(tries)

    @property
    def blocks(self) -> list[int]:
        """How many every register has."""
        return _blocks(self.occupancy, self.rank)

    @property
    def nbytes(self) -> int:
        """All of them."""
        return sum(arena.nbytes for _, arena in self.rows)

    @property
    def gaps_nbytes(self) -> int:
        """Those that are never in use."""
        return self.nbytes - sum(arena.used for _, arena in self.rows)

    def offsets(self, stacked: Container[int]) -> tuple[tuple[int, ...], ...]:
        """Where blocks begin, register by register."""
        at: dict[Block, int] = {}
        for rows, arena in self.rows:
            for row, offset in zip(rows, arena.offsets.tolist(), strict=True):
                at.update([(block, offset + within) for block, within in row.places])
        mine, registers = self.occupancy.registers_of[self.rank], self.occupancy.program.registers
        blocks = [range(0 if registers[i].initial or i in stacked else registers[i].blocks) for i in mine]
        return tuple([tuple([at[i, block] for block in some]) for i, some in zip(mine, blocks, strict=True)])


def _stacked(occupancy: Occupancy, rank: int) -> tuple[dict[int, tuple[int, ...]], dict[Space, int]]:
    """Where the registers lie that hold several micro-batches of very many, and how much that is in each memory.

    They are in use all the time (`occupancy`), so what shares places over time lies above them, however many they hold.
    """
    height = dict.fromkeys(Space, 0)
    found: dict[int, tuple[int, ...]] = {}
    for index in occupancy.registers_of[rank] if occupancy.shortenings[rank] is not None else ():
        register = occupancy.program.registers[index]
        if register.blocks > 1 and not register.initial:
            size, bottom = aligned(register.block_nbytes), height[register.space]
            found[index] = tuple(bottom + block * size for block in range(register.blocks))
            height[register.space] += register.blocks * size
    return found, height


def _in_uneven_turns(occupancy: Occupancy, mine: Sequence[int], stacked: Container[int]) -> bool:
    """Whether some of a rank's blocks are taken by other micro-batches in every step, so that they are never free.

    Of what is in use all the time there are no gaps to be seen.
    """
    registers, count = occupancy.program.registers, occupancy.program.num_micro_batches
    several = (i for i in mine if registers[i].blocks > 1 and not registers[i].initial and i not in stacked)
    return any(count % registers[i].blocks for i in several)


def pool_nbytes(registers: Sequence[Register]) -> int:
    """Bytes of the pool of one rank's registers that have offsets."""
    ends = [aligned(max(register.offsets) + register.block_nbytes) for register in registers if register.offsets]
    return max(ends, default=0)


def state_nbytes(registers: Sequence[Register]) -> int:
    """Bytes of the state among one rank's registers."""
    return sum(register.blocks * aligned(register.block_nbytes) for register in registers if register.initial)


def is_allocated(program: Program) -> bool:
    """Whether every block has an offset in the memory of its rank."""
    return all(register.initial or register.offsets for register in program.registers)


def memory_nbytes(program: Program, space: Space = Space.DEVICE) -> tuple[int, ...]:
    """Bytes that every rank of an allocated program holds in one of its memories."""
    registers: list[list[Register]] = [[] for _ in range(num_ranks(program))]
    for register in program.registers:
        if register.space is space:
            registers[register.rank].append(register)
    return program.of_all_ranks([pool_nbytes(mine) + state_nbytes(mine) for mine in registers])


def fullest(program: Program, rank: int) -> Fill:
    """What a rank's device holds when it holds most; of tensors that share a block in place, the first counts."""
    return fills(program, [rank])[0]


def fills(program: Program, ranks: Sequence[int]) -> list[Fill]:
    """`fullest` of several ranks."""
    occupancy = Occupancy(program)
    return [_fill(occupancy, program.alike[rank] if program.alike else rank) for rank in ranks]


def _fill(occupancy: Occupancy, rank: int) -> Fill:
    program = occupancy.program
    occupants = _in(program, occupancy.of_rank(rank), Space.DEVICE)
    used = usage(_spans(occupancy, occupants))
    at = used.index(max(used))
    live = (o.blocks[0] for o in occupants if ((o.lives[:, 0] <= at) & (at < o.lives[:, 1])).any())
    mine = [i for i in occupancy.registers_of[rank] if program.registers[i].space is Space.DEVICE]
    state = ((i, b) for i in mine for b in range(program.registers[i].blocks))
    held: dict[str, int] = {}
    for index in sorted(i for i, _ in (*live, *((i, b) for i, b in state if program.registers[i].initial))):
        register = program.registers[index]
        is_packed = index in occupancy.row_of  # right behind another
        size = register.block_nbytes if is_packed else aligned(register.block_nbytes)
        held[register.name] = held.get(register.name, 0) + size
    return Fill(sum(held.values()), tuple(sorted(held.items(), key=lambda pair: -pair[1])))


def _spans(occupancy: Occupancy, occupants: Sequence[Occupant]) -> list[Span]:
    nbytes = occupancy.block_nbytes
    return [Span(occupant.lives, aligned(nbytes[occupant.blocks[0][0]])) for occupant in occupants]


def _in(program: Program, occupants: Sequence[Occupant], space: Space) -> list[Occupant]:
    return [occupant for occupant in occupants if program.registers[occupant.blocks[0][0]].space is space]


def _shape(occupancy: Occupancy, rank: int, stacked: Container[int]) -> Hashable:
    """What the placement on a rank depends on, with registers and actors numbered within the rank."""
    program, mine, sequences = occupancy.program, occupancy.registers_of[rank], occupancy.sequences[rank]
    register_number = {index: number for number, index in enumerate(mine)}
    found, first_at, number = np.unique(
        np.concatenate((np.zeros(0, np.int64), *sequences)), return_index=True, return_inverse=True
    )
    order = np.argsort(first_at)
    by_appearance = np.empty_like(order)
    by_appearance[order] = np.arange(len(order))
    actors = [_use(program.actors[index], register_number) for index in found[order].tolist()]
    registers = ((program.registers[i], i in occupancy.dynamic, i in stacked) for i in mine)
    return (
        tuple(
            (0 if several else r.blocks, r.block_nbytes, r.dtype, r.initial, r.ragged is None, r.space, dynamic)
            for r, dynamic, several in registers
        ),
        tuple(actors),
        tuple(map(len, sequences)),
        by_appearance[number].tobytes(),
    )


def _use(actor: Actor, register_number: Mapping[int, int]) -> Hashable:
    rows = tuple(tuple(register_number[index] for index in row) for row in neighbours(actor))
    ports = tuple((register_number[p.register], p.acts_per_piece) for p in (*actor.reads, *actor.writes))
    task = actor.task
    return len(actor.reads), ports, rows, (task.inputs, task.outputs, task.in_place) if isinstance(task, OpTask) else ()
