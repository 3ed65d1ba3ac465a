"""A figure that a source prints, beside the same figure simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SourceFigure:
    """One line of the table: `published` and `tolerance` as text, and the simulated values by name."""

    name: str
    source: str
    published: str
    tolerance: str
    simulated: Mapping[str, float]
    within: bool


def near(values: Mapping[str, float], published: Mapping[str, float], share: float) -> bool:
    """Whether each value is as published but for a share of it."""
    return all(abs(values[name] / figure - 1) <= share for name, figure in published.items())


def falling(values: Sequence[float]) -> bool:
    """Whether each is larger than the next."""
    return all(before > after for before, after in pairwise(values))
