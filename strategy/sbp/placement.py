"""Placement: which devices hold a tensor or run an op, as an n-d mesh with named axes.

Placement((0, 1, 2, 3), (2, 2), ("data", "tensor"))

             tensor ->
    data |    0  1
         v    2  3

Each rank has two memories: that of its device, on which its ops compute, and its host's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum

from strategy.base.errors import InputError
from strategy.sbp.tensor import Shape


class Space(StrEnum):
    """Which of a rank's memories: that of its device, or that of the host that the device belongs to."""

    DEVICE = "device"
    HOST = "host"


MOVES = {f"to_{space}": space for space in Space}
"""Op kind -> the memory that it brings a tensor to, over the link between a device and its host."""


def read_space(kind: str) -> Space:
    """The memory that an op of a kind reads, if it is alone: the device's, but for what brings tensors there."""
    return Space.HOST if MOVES.get(kind) is Space.DEVICE else Space.DEVICE


@dataclass(frozen=True, slots=True)
class Placement:
    """Global ranks in row-major mesh order; `mesh` is the size of each axis, outermost first; `space` their memory."""

    devices: tuple[int, ...]
    mesh: Shape
    axes: tuple[str, ...]
    space: Space = Space.DEVICE

    def __post_init__(self) -> None:
        if len(self.mesh) != len(self.axes) or not self.mesh or min(self.mesh) < 1:
            raise InputError("a mesh needs one name and one size >= 1 per axis", got=(self.mesh, self.axes))
        if math.prod(self.mesh) != len(self.devices):
            raise InputError("mesh and devices disagree", got=f"mesh {self.mesh} for {len(self.devices)} devices")
        if len(set(self.devices)) != len(self.devices):
            raise InputError("a device stands twice in a placement", got=self.devices)
        if min(self.devices) < 0:
            raise InputError("a device is negative", got=self.devices, expected="global ranks from 0")
        if len(set(self.axes)) != len(self.axes):
            raise InputError("an axis name stands twice in a mesh", got=self.axes)

    def __str__(self) -> str:
        return f"{list(self.devices)}" + (" (hosts)" if self.space is Space.HOST else "")

    def coords(self, rank: int) -> Shape:
        """Mesh coordinates of a global rank that belongs to this placement."""
        index = self._index(rank)
        position = []
        for size in reversed(self.mesh):
            index, coord = divmod(index, size)
            position.append(coord)
        return tuple(reversed(position))

    def _index(self, rank: int) -> int:
        """Where a rank stands among the devices, which are ranks in a row as a rule."""
        guess = rank - self.devices[0]
        in_a_row = 0 <= guess < len(self.devices) and self.devices[guess] == rank
        return guess if in_a_row else self.devices.index(rank)

    def group(self, rank: int, *axes: int) -> tuple[int, ...]:
        """The ranks that differ from `rank` along `axes` alone, in row-major order of those (`rank` included)."""
        return tuple(self.devices[position] for position in self.positions(rank, *axes))

    def positions(self, rank: int, *axes: int) -> tuple[int, ...]:
        """Where the ranks of `group` stand among the devices."""
        coords = self.coords(rank)
        strides = [math.prod(self.mesh[axis + 1 :]) for axis in axes]
        first = self._index(rank) - sum(coords[a] * stride for a, stride in zip(axes, strides, strict=True))
        found = [first]
        for axis, stride in zip(axes, strides, strict=True):
            found = [position + i * stride for position in found for i in range(self.mesh[axis])]
        return tuple(found)

    def groups(self, *axes: int) -> tuple[tuple[int, ...], ...]:
        """Every group along `axes`, in the order of its first rank's mesh position."""
        others = [range(1) if i in axes else range(size) for i, size in enumerate(self.mesh)]
        strides = [math.prod(self.mesh[i + 1 :]) for i in range(len(self.mesh))]
        firsts = (sum(c * s for c, s in zip(coords, strides, strict=True)) for coords in itertools.product(*others))
        return tuple(self.group(self.devices[first], *axes) for first in firsts)
