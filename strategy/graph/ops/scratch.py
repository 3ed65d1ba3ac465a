"""Scratch: what an act uses beside its operands, as arrays by name; declared by the op, so that it can be placed.

An op that asks its scratch for arrays *declares* them by `OpDef.scratch`: bytes of each, from the shapes of a rank's
pieces. So a device's scratch is known, counted and placed before the first act (`executor.runtime.workspaces`), and an
act that asks for more than its op declared is refused there. On the host arrays are allocated on first use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from strategy.graph.graph import Attrs
from strategy.sbp.tensor import Shape, TensorSpec

Array = Any
Specs = Sequence[TensorSpec]

SCRATCH_ALIGNMENT = 256
"""Scratch arrays of a device begin at multiples of so many bytes, as CUDA's own allocations do."""


class Scratch(Protocol):
    """Arrays of one actor beside its operands."""

    @property
    def xp(self) -> Any:
        """The array module."""
        ...

    def get(self, name: str, shape: Shape, dtype: Any) -> Array:
        """An uninitialised array of this shape and dtype: in the same memory on every call, and in every act."""
        ...

    def constant(self, name: str, shape: Shape, dtype: Any, make: Callable[[], Array]) -> Array:
        """An array that `make` computes on first use, that nobody writes, and that is kept from act to act."""
        ...


@dataclass(frozen=True, slots=True)
class ScratchSizes:
    """Bytes of the arrays of one actor's scratch: of those that every act writes anew, and of those that are kept."""

    anew: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


DeclareScratch = Callable[[Specs, Specs, Attrs], ScratchSizes]
"""From the specs of a rank's pieces of inputs and outputs, and the attributes: at least what acts ask for."""


def scratch_like(*positions: int) -> DeclareScratch:
    """Arrays like the inputs at these positions."""

    def sizes(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
        return ScratchSizes(tuple(inputs[position].nbytes for position in positions))

    return sizes


def sized(element_nbytes: int, *shapes: Shape) -> tuple[int, ...]:
    """Bytes of arrays of these shapes."""
    return tuple(element_nbytes * math.prod(shape) for shape in shapes)
