"""What is known to come before what on one device: vector clocks of its streams and the host, and uses of every byte.

A use of a byte is by a stream or by the host, at a position of its own. A read must know of every write of the byte
that was issued before it, a write of every use. What they know comes from stream order, from events that a stream or
the host has waited for, and from the host's order of issuing, and from nothing else: neither that a poll has found an
event passed nor that other ranks meet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 24
"""Streams of a device at most, and the host, whose place is the last."""
HOST = WIDTH - 1

Clock = NDArray[np.int64]


class OrderFault(Exception):
    """Something that no event allows, or that a steady step must not do."""


def nothing() -> Clock:
    """The clock of whoever knows of nothing."""
    return np.zeros(WIDTH, np.int64)


@dataclass(eq=False)
class Memory:
    """Bytes, with the position of the last read and write of each by everyone."""

    raw: NDArray[np.uint8]
    writes: NDArray[np.int32] = field(init=False)
    reads: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.writes = np.zeros((WIDTH, self.raw.size), np.int32)
        self.reads = np.zeros((WIDTH, self.raw.size), np.int32)

    @property
    def begin(self) -> int:
        """Its address."""
        return int(self.raw.__array_interface__["data"][0])


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes [begin, end) of a memory, and what uses them for."""

    memory: Memory
    begin: int
    end: int
    writes: bool
    what: str

    def unknown_to(self, clock: Clock) -> list[int]:
        """Who used the bytes before, without that clock's owner knowing."""
        there = slice(self.begin, self.end)
        last = self.memory.writes[:, there].max(axis=1, initial=0)
        if self.writes:
            last = np.maximum(last, self.memory.reads[:, there].max(axis=1, initial=0))
        return [int(who) for who in np.flatnonzero(last > clock)]

    def note(self, who: int, position: int) -> None:
        """It is used so, by that one, now."""
        (self.memory.writes if self.writes else self.memory.reads)[who, self.begin : self.end] = position


@dataclass(eq=False)
class Order:
    """The clocks of one device. `positions` are of its streams and the host; an event is a copy of a clock."""

    names: list[str] = field(default_factory=list)
    clocks: list[Clock] = field(default_factory=lambda: [nothing() for _ in range(WIDTH)])
    positions: list[int] = field(default_factory=lambda: [0] * WIDTH)
    _before: dict[int, Clock] = field(default_factory=dict)
    _learned: dict[int, list[Clock]] = field(default_factory=dict)

    def stream(self, name: str) -> int:
        """A new stream."""
        if len(self.names) == HOST:
            raise OrderFault(f"more than {HOST} streams")
        self.names.append(name)
        return len(self.names) - 1

    def turn(self, who: int) -> None:
        """A stream, or the host, goes on; a stream knows what the host knew when it issued this."""
        self.positions[who] += 1
        if who != HOST:
            np.maximum(self.clocks[who], self.clocks[HOST], out=self.clocks[who])
        self.clocks[who][who] = self.positions[who]

    def learn(self, who: int, clock: Clock) -> None:
        """It waits for an event."""
        self._before.setdefault(who, self.clocks[who].copy())
        self._learned.setdefault(who, []).append(clock)
        self.clocks[who] = np.maximum(self.clocks[who], clock)

    def without(self, who: int) -> list[Clock]:
        """What would be known without each of the events waited for since this was last asked."""
        before, learned = self._before.pop(who, nothing()), self._learned.pop(who, [])
        known = before if who == HOST else np.maximum(before, self.clocks[HOST])
        found = []
        for left_out in range(len(learned)):
            clock = np.maximum.reduce([known, *learned[:left_out], *learned[left_out + 1 :]])
            clock[who] = self.positions[who]
            found.append(clock)
        return found

    def use(self, who: int, uses: Iterable[Use]) -> None:
        """Allow uses, and note them.

        Raises:
            OrderFault: something is used without an event behind another use of it.
        """
        found = list(uses)
        for one in found:
            unknown = one.unknown_to(self.clocks[who])
            if unknown:
                others = ", ".join(self.name(other) for other in unknown)
                raise OrderFault(f"{self.name(who)} {one.what} without waiting for {others}")
        for one in found:
            one.note(who, self.positions[who])

    def name(self, who: int) -> str:
        """A stream's, or the host."""
        return "the host" if who == HOST else f"stream {self.names[who]}"


def place(memories: Iterable[Memory], array: NDArray[Any]) -> tuple[Memory, int, int] | None:
    """The memory that an array lies in, and its bytes there, those between its rows included."""
    low, high = np.lib.array_utils.byte_bounds(array)
    for memory in memories:
        if memory.begin <= low and high <= memory.begin + memory.raw.size:
            return memory, low - memory.begin, high - memory.begin
    return None
