"""Protocol buffers: the fields of a message, read in place.

The wire format (protobuf.dev, "Encoding") is four kinds of fields. Read so, ONNX takes no memory but what is asked
for: a message inside is a view of the same bytes, where a library makes objects of all of them before anything can be
counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from strategy.base.errors import InputError

Content = int | memoryview
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(message: memoryview, where: str) -> Iterator[tuple[int, Content]]:
    """(number, content) of every field; content is a whole number, or the bytes of whatever is longer.

    Raises:
        InputError: the message is damaged.
    """
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place, where)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(message, place, where)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place, where)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise InputError("not a protobuf message", where=where, got=f"a field of wire type {kind} at byte {place}")
        if number == 0 or place + size > end:
            raise InputError("a protobuf message is damaged or truncated", where=where, got=f"{size} bytes at {place}")
        yield number, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int, where: str) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 64:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise InputError("a protobuf message is damaged or truncated", where=where, got=f"a number at byte {place}")


def signed(value: Content, where: str) -> int:
    """A whole number of 64 bits with its sign."""
    if not isinstance(value, int):
        raise InputError("not a whole number", where=where, got=f"{len(value)} bytes")
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def text(value: Content, where: str) -> str:
    """A text."""
    try:
        return bytes(part(value, where)).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=f"{where}: byte {error.start}") from None


def part(value: Content, where: str) -> memoryview:
    """A message inside, or bytes."""
    if isinstance(value, int):
        raise InputError("not a message", where=where, got=value)
    return value


def figure(value: Content, where: str) -> float:
    """A float of 32 bits."""
    held = part(value, where)
    if len(held) != 4:
        raise InputError("not a figure", where=where, got=f"{len(held)} bytes")
    found: float = struct.unpack("<f", held)[0]
    return found


def whole_numbers(value: Content, where: str) -> Iterator[int]:
    """Packed whole numbers, or one that is not packed."""
    if isinstance(value, int):
        yield signed(value, where)
        return
    place = 0
    while place < len(value):
        found, place = _varint(value, place, where)
        yield signed(found, where)
