"""Places taken: blocks of a stage's registers of which every two are in use at one time, so that none share a place.

Micro-batches take the blocks of a register in turn, and every block has its place for the whole step. Two blocks that
are once in use together lie apart for good, though at any one time few of all may be in use:

    saved, two blocks      | 0 | 0 1 | 1 . | 0 . | 0 1 |         block 0 of `deferred` meets both blocks of `saved`, one
    deferred, one block    | . | .   | 0   | 0   | .   |         after the other: three places, for two in use at a time

A set of blocks of which every two meet is a clique of the graph of those that do; no arena is smaller (Pisarchyk and
Lee 2020, arXiv:2001.03288, section 3).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from strategy.bounds.chunk_states import ChunkState, enough, moments
from strategy.layout.schedule import Schedule

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
SAVED, WAITING, DEFERRED = 0, 1, 2
"""Of `ChunkState`, what micro-batches take in turn."""
HELD = BEHIND, SUMS, AHEAD = 4, 3, 5
"""What is there or not."""
ROUNDS = 3
"""So often as many micro-batches are looked at as show all that is held at once: pairs of blocks meet in turn."""


class _Register(NamedTuple):
    """What it holds, of which lap, in how many blocks more than are ever in use at once."""

    kind: int
    lap: int
    more: int


@lru_cache(maxsize=1 << 13)
def places_taken(
    schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int
) -> tuple[ChunkState, ChunkState]:
    """Blocks of which every two meet: of registers with as many as are in use at most, and of those with one more.

    One more have those that a transfer writes or reads. Registers of which all blocks are in use at one moment meet,
    whichever micro-batches these hold; else what meets while forward passes follow is looked at, for until then the
    order of more micro-batches is the same. Taken are, in turn, all blocks that meet those taken before.
    """
    few = min(num_micro_batches, ROUNDS * enough(schedule, stages, num_micro_batches))
    numbers, starts = moments(schedule, stages, stage, few, laps)
    in_turn = (SAVED, WAITING, DEFERRED) if schedule.splits_backward else (SAVED,)
    registers = [_Register(kind, lap, 0) for kind in (*in_turn, *HELD) for lap in range(laps)]
    registers += [_Register(kind, lap, 1) for kind in in_turn for lap in range(laps)]
    found = np.zeros((2, len(numbers), laps), np.int64)
    for register, count in zip(registers, _clique(numbers, starts, registers, num_micro_batches), strict=True):
        found[register.more, register.kind, register.lap] = count
    found[1, list(HELD)] = found[0, list(HELD)]
    if not schedule.splits_backward:
        found[:, WAITING] = found[:, SAVED]
    exact, roomy = (ChunkState(*(tuple(each) for each in one)) for one in found.tolist())
    return exact, roomy


def _clique(numbers: IntArray, starts: IntArray, registers: list[_Register], num_micro_batches: int) -> list[int]:
    """How many blocks of every register are taken.

    Args:
        numbers: (7, moments, laps) of `ChunkState`.
        starts: (3, moments, laps) the first micro-batch of those that are there.
        registers: in which order they are looked at.
        num_micro_batches: of a step. Where blocks do not divide them, a block's micro-batches are others in every step;
            it is in use whenever it is so in some step.
    """
    until = int(np.flatnonzero((numbers[AHEAD] > 0).any(1))[-1]) + 2
    there = np.array([numbers[one.kind, :, one.lap] for one in registers])
    most = there.max(1)
    blocks = most + (most > 0) * np.array([one.more for one in registers])
    of = np.repeat(np.arange(len(registers)), blocks)
    block = np.arange(len(of)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    begins = np.array([starts[one.kind, :, one.lap] if one.kind < len(starts) else 0 * there[0] for one in registers])
    apart = np.maximum(np.gcd(num_micro_batches, blocks), 1)[of, None]
    used = (block[:, None] - begins[of, :until]) % apart < there[of, :until]
    meets = _meet(used) | _meet(there == most[:, None])[np.ix_(of, of)]
    left, taken = np.ones(len(of), bool), np.zeros(len(registers), np.int64)
    for row, i in enumerate(of.tolist()):
        if left[row]:
            taken[i] += 1
            left &= meets[row]
    # Where all are in use at one moment but one, any of them may be that one.
    found: list[int] = np.where(taken < blocks, np.maximum(taken - (blocks - most), 0), most).tolist()
    return found


def _meet(used: BoolArray) -> BoolArray:
    """(n, n): whether two are in use at one time; used: (n, moments)."""
    often = used.astype(np.float32)
    meets: BoolArray = often @ often.T > 0
    return meets
