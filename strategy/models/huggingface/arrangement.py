"""Which layers repeat: of a list of kinds of layers, the part that a period makes up, and what is left at the ends.

d d d s s s s s s      before d d d, then 6 times s
w a w a w a            3 times (w a)
w w a w w a w          2 times (w w a), then w
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Kind = tuple[int, bool]
"""(window, whether it has experts)."""
LONGEST = 64
"""Layers of a period."""


@dataclass(frozen=True, slots=True)
class LayerPattern:
    """Layers that do not repeat before and after those that do, `layers` times a period; kinds of each but repeats."""

    before: int
    layers: int
    after: int
    kinds: tuple[Kind, ...]


def arranged(kinds: Sequence[Kind]) -> LayerPattern:
    """The arrangement with the shortest period and fewest layers outside of it, added up; of these the first."""
    count = len(kinds)
    best = min(
        (_longest(kinds, period) for period in range(1, min(count, LONGEST) + 1)),
        key=lambda found: count - found[1] * found[2] + found[2],
    )
    before, layers, period = best
    end = before + layers * period
    return LayerPattern(before, layers, count - end, (*kinds[: before + period], *kinds[end:]))


def _longest(kinds: Sequence[Kind], period: int) -> tuple[int, int, int]:
    """(where it begins, how often, the period) of what repeats most often."""
    best, begin = (0, 1, period), 0
    for place in range(period, len(kinds) + 1):
        if place < len(kinds) and kinds[place] == kinds[place - period]:
            continue
        if (place - begin) // period > best[1]:
            best = (begin, (place - begin) // period, period)
        begin = place - period + 1
    return best
