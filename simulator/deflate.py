"""Text that repeats itself at known places, as gzip: copies are said, not searched for.

A general compressor spends its time on finding what was there before. Who writes a million lines of a few kinds knows:
he *marks* where a copy may begin, and of what. The blocks have the fixed code of DEFLATE (RFC 1951, section 3.2.6).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from strategy.compiled import in_place

Bytes = NDArray[np.uint8]
Integers = NDArray[np.int64]

WINDOW = 1 << 15
LONGEST, SHORTEST = 258, 3
HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Of a gzip file without name and time (RFC 1952)."""
LAST_BLOCK = b"\x03\x00"
"""An empty one."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """ASCII text. A copy may begin at `marks[i, 0]`, of what begins at `marks[i, 1]`, before it in the same piece.

    Marks are in order; one of what is nowhere says -1.
    """

    text: Bytes
    marks: Integers = field(default_factory=lambda: np.empty((0, 2), dtype=np.int64))

    @classmethod
    def of(cls, text: str) -> Piece:
        """Without marks."""
        return cls(np.frombuffer(text.encode("ascii"), dtype=np.uint8))


def zipped(pieces: Iterable[Piece]) -> Iterator[bytes]:
    """The gzip file of all pieces, bit by bit the same for the same pieces."""
    codes = _codes()
    check = size = 0
    yield HEADER
    for piece in pieces:
        check, size = zlib.crc32(piece.text.data, check), size + len(piece.text)
        # A character takes eight bits; a copy at most 31, and stands for three characters at least.
        buffer = np.empty(len(piece.text) * 31 // 24 + 64, dtype=np.uint8)
        yield buffer[: _deflated(piece.text, piece.marks, *codes, buffer)].tobytes()
    yield LAST_BLOCK + struct.pack("<II", check, size & 0xFFFFFFFF)


def _codes() -> tuple[Integers, Integers, Integers]:
    """Of every literal, every length and every distance, as `bits << 5 | how many`, the first bit lowest."""
    literals = np.array([_code(0x30 + byte, 8) for byte in range(128)], dtype=np.int64)
    lengths, distances = np.zeros(LONGEST + 1, dtype=np.int64), np.zeros(WINDOW + 1, dtype=np.int64)
    for length in range(SHORTEST, LONGEST + 1):
        number, extra, count = (28, 0, 0) if length == LONGEST else _bucket(length - SHORTEST, 2)
        code = _code(1 + number, 7) if number < 23 else _code(0xC0 + number - 23, 8)
        lengths[length] = _followed(code, extra, count)
    for distance in range(1, WINDOW + 1):
        number, extra, count = _bucket(distance - 1, 1)
        distances[distance] = _followed(_code(number, 5), extra, count)
    return literals, lengths, distances


def _bucket(value: int, bits: int) -> tuple[int, int, int]:
    """(number, extra bits, how many) of a length or distance: `bits` after the first say which bucket it is in."""
    count = max(0, value.bit_length() - bits - 1)
    return (count << bits) + (value >> count), value & ((1 << count) - 1), count


def _code(value: int, count: int) -> int:
    """A Huffman code, which is written from its highest bit on."""
    return int(f"{value:0{count}b}"[::-1], 2) << 5 | count


def _followed(code: int, extra: int, count: int) -> int:
    """A code and what is written after it, lowest bit first."""
    return ((code >> 5) | extra << (code & 31)) << 5 | ((code & 31) + count)


@in_place
def _deflated(
    text: Bytes, marks: Integers, literals: Integers, lengths: Integers, distances: Integers, buffer: Bytes
) -> int:
    """Write one block, and an empty stored one that ends on a whole byte; gives the bytes written."""
    size, bits, count = 0, 2, 3
    place = 0
    for k in range(len(marks) + 1):
        stop = marks[k, 0] if k < len(marks) else len(text)
        while place < stop:
            code = literals[text[place]]
            bits, count, place = bits | (code >> 5) << count, count + (code & 31), place + 1
            if count >= 32:
                size, bits, count = _flushed(buffer, size, bits), bits >> 32, count - 32
        source = marks[k, 1] if k < len(marks) else -1
        if source >= 0 and stop - source <= WINDOW:
            end = min(stop + LONGEST, marks[k + 1, 0] if k + 1 < len(marks) else len(text))
            while place < end and text[place] == text[source + place - stop]:
                place += 1
            if place - stop < SHORTEST:
                place = stop
            else:
                code, other = lengths[place - stop], distances[stop - source]
                bits, count = bits | (code >> 5) << count, count + (code & 31)
                if count >= 32:
                    size, bits, count = _flushed(buffer, size, bits), bits >> 32, count - 32
                bits, count = bits | (other >> 5) << count, count + (other & 31)
                if count >= 32:
                    size, bits, count = _flushed(buffer, size, bits), bits >> 32, count - 32
    # The end of the block is seven zeros, the head of a stored one three, and zeros fill the byte.
    count += 10
    while count > 0:
        buffer[size] = bits & 255
        size, bits, count = size + 1, bits >> 8, count - 8
    buffer[size], buffer[size + 1], buffer[size + 2], buffer[size + 3] = 0, 0, 255, 255
    return size + 4


@in_place
def _flushed(buffer: Bytes, size: int, bits: int) -> int:
    """Write the lowest 32 bits."""
    for k in range(4):
        buffer[size + k] = (bits >> (8 * k)) & 255
    return size + 4
