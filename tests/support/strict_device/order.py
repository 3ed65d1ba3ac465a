"""What is known to come before what on one device: vector clocks of its streams and the host, and uses of every byte.

A use of a byte is by a stream or by the host, at a position of its own. A read must know of every write of the byte
that was issued before it, a write of every use. What they know comes from stream order, from events that a stream or
the host has waited for, and from the host's order of issuing, and from nothing else: neither that a poll has found an
event passed nor that other ranks meet.

A write that is allowed knows of all uses before it, and whoever knows of it knows of them: of what was, the last write
and the reads since then are kept (Flanagan and Freund 2009). Bytes that are always used together are one part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 24
"""Streams of a device at most, and the host, whose place is the last."""
HOST = WIDTH - 1

Clock = list[int]


class OrderFault(Exception):
    """Something that no event allows, or that a steady step must not do."""


def nothing() -> Clock:
    """The clock of whoever knows of nothing."""
    return [0] * WIDTH


@dataclass(slots=True, eq=False)
class Part:
    """Bytes that have all been used alike: who wrote them last, at which position, and who has read them since."""

    writer: int = HOST
    written: int = 0
    readers: dict[int, int] = field(default_factory=dict)


@dataclass(eq=False)
class Memory:
    """Bytes, and what is known of each."""

    raw: NDArray[np.uint8]
    begin: int = field(init=False)
    """Its address."""
    _cuts: list[int] = field(default_factory=lambda: [0])
    _parts: list[Part] = field(default_factory=lambda: [Part()])
    """Between two cuts each, and behind the last."""
    _found: dict[tuple[int, int], list[Part]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin = int(self.raw.__array_interface__["data"][0])

    def parts(self, begin: int, end: int) -> list[Part]:
        """Those of bytes [begin, end)."""
        found = self._found.get((begin, end))
        if found is None:
            first, behind = self._cut(begin), self._cut(end)
            found = self._found[begin, end] = self._parts[first:behind]
        return found

    def _cut(self, at: int) -> int:
        """The part that begins there, cut off if it did not."""
        number = bisect_left(self._cuts, at)
        if number == len(self._cuts) or self._cuts[number] != at:
            before = self._parts[number - 1]
            self._cuts.insert(number, at)
            self._parts.insert(number, Part(before.writer, before.written, dict(before.readers)))
            self._found.clear()
        return number


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
        found = []
        for part in self.memory.parts(self.begin, self.end):
            if part.written > clock[part.writer]:
                found.append(part.writer)
            if self.writes and part.readers:
                found += [who for who, position in part.readers.items() if position > clock[who]]
        return found

    def note(self, who: int, position: int) -> None:
        """It is used so, by that one, who knows of what was before, now."""
        for part in self.memory.parts(self.begin, self.end):
            if self.writes:
                part.writer, part.written = who, position
                part.readers.clear()
            else:
                part.readers[who] = position


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
            self.clocks[who] = latest(self.clocks[who], self.clocks[HOST])
        self.clocks[who][who] = self.positions[who]

    def learn(self, who: int, clock: Clock) -> None:
        """It waits for an event."""
        self._before.setdefault(who, self.clocks[who].copy())
        self._learned.setdefault(who, []).append(clock)
        self.clocks[who] = latest(self.clocks[who], clock)

    def without(self, who: int) -> list[Clock]:
        """What would be known without each of the events waited for since this was last asked."""
        before, learned = self._before.pop(who, nothing()), self._learned.pop(who, [])
        known = before if who == HOST else latest(before, self.clocks[HOST])
        found = []
        for left_out in range(len(learned)):
            clock = latest(known, *learned[:left_out], *learned[left_out + 1 :])
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
                others = ", ".join(self.name(other) for other in sorted(set(unknown)))
                raise OrderFault(f"{self.name(who)} {one.what} without waiting for {others}")
        for one in found:
            one.note(who, self.positions[who])

    def name(self, who: int) -> str:
        """A stream's, or the host."""
        return "the host" if who == HOST else f"stream {self.names[who]}"


def latest(*clocks: Clock) -> Clock:
    """What those know together."""
    return list(map(max, *clocks)) if len(clocks) > 1 else list(clocks[0])


@dataclass(eq=False)
class Memories:
    """Memories, found by what lies in them."""

    _begins: list[int] = field(default_factory=list)
    _all: list[Memory] = field(default_factory=list)

    def add(self, memory: Memory) -> None:
        """One more, unless nothing can lie in it."""
        if not memory.raw.size:
            return
        number = bisect_left(self._begins, memory.begin)
        self._begins.insert(number, memory.begin)
        self._all.insert(number, memory)

    def place(self, array: NDArray[Any]) -> tuple[Memory, int, int] | None:
        """The memory that an array lies in, and its bytes there, those between its rows included."""
        low, high = np.lib.array_utils.byte_bounds(array)
        number = bisect_right(self._begins, low) - 1
        memory = self._all[number] if number >= 0 else None
        if memory is None or high > memory.begin + memory.raw.size:
            return None
        return memory, low - memory.begin, high - memory.begin
