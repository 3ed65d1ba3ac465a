"""Rows of the global batch: which of them a rank's part of a micro-batch holds.

    by micro-batch (2 ranks, 2 micro-batches, rows of 8)     by rank
      micro-batch 0   rank 0: 0 1   rank 1: 2 3                micro-batch 0   rank 0: 0 1   rank 1: 4 5
      micro-batch 1   rank 0: 4 5   rank 1: 6 7                micro-batch 1   rank 0: 2 3   rank 1: 6 7

By micro-batch, what all ranks train on at one time does not depend on how many there are. By rank, the micro-batches of
a rank are neighbours, as sums in one tree want them (`executor.runtime.summation_tree`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRows:
    """How the rows of a global batch are dealt out to `num_micro_batches` of it."""

    num_micro_batches: int
    by_rank: bool = False

    def of(self, begin: int, end: int, rows: int, micro_batch: int) -> tuple[int, int]:
        """The rows of the global batch that rows [begin, end) of `micro_batch`, which has so many `rows`, are."""
        if not self.by_rank:
            return micro_batch * rows + begin, micro_batch * rows + end
        size = end - begin
        first = (begin // size * self.num_micro_batches + micro_batch) * size
        return first, first + size
