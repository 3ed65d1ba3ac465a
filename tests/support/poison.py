"""Poison: every block is filled with what no computation survives as soon as its piece has been read for the last time.

A run whose results are right all the same has read nothing too late, and no block that shares memory with another was
in use when that one's time had ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from executor.runtime.acts import memory
from executor.train import Trainer
from strategy.program.program import Program
from tests.support.reference import Array


class Poison:
    """Of one rank: call it before every act, when all acts that have ended are among the worker's records."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.trainer: Trainer | None = None
        self.filled = 0
        self._seen = 0
        self._consumers = [0] * len(program.registers)
        for actor in program.actors:
            for port in actor.reads:
                self._consumers[port.register] += 1
        self._returned: dict[tuple[int, int], int] = {}

    def __call__(self, actor: int, number: int) -> None:
        """Fill the blocks of pieces that nobody reads any more."""
        if self.trainer is None:
            return
        records = self.trainer.worker.records
        for ended, _, count, read_blocks, write_blocks, *_ in records[self._seen :]:
            self._after(ended, count, read_blocks, write_blocks)
        self._seen = len(records)

    def _after(self, ended: int, number: int, read_blocks: tuple[int, ...], write_blocks: tuple[int, ...]) -> None:
        actor = self.program.actors[ended]
        written = [self._array(p.register, b) for p, b in zip(actor.writes, write_blocks, strict=True)]
        for port, block in zip(actor.reads, read_blocks, strict=True):
            if (number + 1) % port.acts_per_piece == 0:
                piece = (port.register, number // port.acts_per_piece)
                self._returned[piece] = self._returned.get(piece, 0) + 1
                in_place = any(np.shares_memory(self._array(port.register, block), array) for array in written)
                if self._returned[piece] == self._consumers[port.register] and not in_place:
                    self._fill(port.register, block)
        for port, block in zip(actor.writes, write_blocks, strict=True):
            if (number + 1) % port.acts_per_piece == 0 and not self._consumers[port.register]:
                self._fill(port.register, block)

    def _fill(self, register: int, block: int) -> None:
        if not self.program.registers[register].initial:
            array = self._array(register, block)
            array.fill(np.iinfo(array.dtype).max if array.dtype.kind in "iu" else np.nan)
            self.filled += 1

    def _array(self, register: int, block: int) -> Array:
        assert self.trainer is not None
        found: Any = memory(self.trainer.worker.registers.block(register, block))
        return found
