"""A bound act: what runs an op on its arrays, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BoundAct:
    """An act of an op on its arrays.

    Attributes:
        run: runs it; when it returns, the work is done, or ordered on the device's current stream.
        repeats: whether it gives the device the same each time, except that an accumulator begins or goes on.
    """

    run: Callable[[], None]
    repeats: bool = False
