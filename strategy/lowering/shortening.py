"""Shortening: a stream of many micro-batches as one of a few, in which every pass still has the same neighbours.

Where a stream runs F for the forward pass of a micro-batch and B for the backward one (or F alone for both), as

    F F ... F   B F B F ... B F   B B ... B        a forwards ahead, m micro-batches

three of each part have every pass between the passes that it ever stands between. What one block holds, micro-batch
after micro-batch, overlaps then with what it ever overlaps with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strategy.program.program import Program

LONG = 64
"""Micro-batches up to which nothing is shortened."""

KEPT = 3
"""Micro-batches that are kept of those ahead, and of those that follow one backward each."""


@dataclass(frozen=True, slots=True)
class Shortening:
    """Keeps micro-batches below `first`, and `more` from `again` on; step by step acts are kept as they are."""

    first: int
    again: int
    more: int

    @property
    def num_micro_batches(self) -> int:
        """How many are kept."""
        return self.first + self.more

    def sequence(self, program: Program, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """What is left of one step of a stream."""
        by_actor = np.argsort(turns, kind="stable")
        begins = np.flatnonzero(np.diff(turns[by_actor], prepend=-1))
        nth = np.empty(len(turns), dtype=np.int64)
        nth[by_actor] = np.arange(len(turns)) - np.repeat(begins, np.diff(begins, append=len(turns)))
        once = [actor for actor in turns[by_actor[begins]].tolist() if program.actors[actor].acts_per_step == 1]
        kept = (nth < self.first) | ((self.again <= nth) & (nth < self.again + self.more)) | np.isin(turns, once)
        return turns[kept]


def shortening(program: Program, sequence: tuple[int, ...]) -> Shortening | None:
    """How the stream with this sequence is shortened; None if it is short, or of another shape."""
    m = program.num_micro_batches
    acts = {actor: program.actors[actor].acts_per_step for actor in set(sequence)}
    if m <= LONG or m not in acts.values() or not {1, m}.issuperset(acts.values()):
        return None
    turns = np.array(sequence, dtype=np.int64)
    often = turns[~np.isin(turns, [actor for actor, count in acts.items() if count == 1])]
    length = int(np.flatnonzero(often == often[0])[1])
    forward, per_micro_batch = often[:length], len(often) // m
    ahead = 1
    while np.array_equal(often[ahead * length : (ahead + 1) * length], forward):
        ahead += 1
    backward = often[ahead * length : (ahead - 1) * length + per_micro_batch]
    both = np.concatenate((backward, forward))
    parts = np.tile(forward, ahead), np.tile(both, m - ahead), np.tile(backward, ahead)
    if ahead > m or not np.array_equal(often, np.concatenate(parts)):
        return None
    return Shortening(min(ahead, KEPT), ahead, min(m - ahead, KEPT))
