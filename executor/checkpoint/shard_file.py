"""Shard files: a safetensors file's header, and the bytes of one of its pieces.

Files are read, never mapped. A mapped file counts as memory of the process beside the copy that is made of a piece, and
one that is cut off meanwhile ends the process with SIGBUS; a short read is an error like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from executor.runtime.transport.base import bytes_of
from strategy.base.errors import InputError
from strategy.sbp.tensor import DType, Shape

_HEADER_LIMIT = 100_000_000
_PREFIX_BYTES = 8
_DTYPES = {
    "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16,
    "F32": DType.FLOAT32,
    "F64": DType.FLOAT64,
    "F8_E4M3": DType.FLOAT8_E4M3,
    "F8_E5M2": DType.FLOAT8_E5M2,
    "F8_E8M0": DType.FLOAT8_E8M0,
    "I32": DType.INT32,
    "I64": DType.INT64,
}
"""By safetensors' letters."""


class Stored(msgspec.Struct, frozen=True):
    """One tensor as a header tells of it; offsets count from the header's end."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """A safetensors file's head: eight bytes of length, then as many of JSON.

    Attributes:
        path: the file.
        content: the JSON.
        sha256: of length and JSON.
    """

    path: Path
    content: bytes
    sha256: str

    @property
    def data_begins(self) -> int:
        """Where the first tensor's bytes are."""
        return _PREFIX_BYTES + len(self.content)

    def pieces(self) -> Mapping[str, Stored]:
        """Every tensor of the file.

        Raises:
            InputError: it is no safetensors header.
        """
        try:
            found = msgspec.json.decode(self.content, type=dict[str, msgspec.Raw])
            found.pop("__metadata__", None)
            return {key: msgspec.json.decode(value, type=Stored) for key, value in found.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError("not a header of safetensors", where=str(self.path), got=str(error)) from error


def read_header(path: Path) -> Header:
    """The head of a file.

    Raises:
        InputError: it says that it is longer than can be, or than the file is.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        prefix = file.read(_PREFIX_BYTES)
        nbytes = int.from_bytes(prefix, "little")
        if nbytes > min(_HEADER_LIMIT, path.stat().st_size):
            raise InputError("the header is larger than can be", where=str(path), got=nbytes)
        content = file.read(nbytes)
    digest = hashlib.sha256(prefix)
    digest.update(content)
    return Header(path, content, digest.hexdigest())


def read_piece(header: Header, stored: Stored | None, dtype: DType, shape: Shape) -> tuple[NDArray[Any], str]:
    """A piece, and the SHA-256 of its bytes; nothing is allocated for one of another size than is expected.

    Raises:
        InputError: the file has no such piece, or it is of another dtype, shape or size.
        OSError: the file cannot be read.
    """
    nbytes = dtype.nbytes
    for size in shape:
        nbytes *= size
    where = str(header.path)
    if stored is None or (_DTYPES.get(stored.dtype), stored.shape) != (dtype, shape):
        got = "no piece" if stored is None else f"{stored.dtype} {stored.shape}"
        raise InputError("a piece is not what the manifest says", where=where, got=got, expected=f"{dtype} {shape}")
    begin, end = stored.data_offsets
    held = header.path.stat().st_size - header.data_begins
    if not 0 <= begin <= end <= held or end - begin != nbytes:
        raise InputError("a piece lies outside of its file", where=where, got=(begin, end), expected=f"{nbytes} bytes")
    array: NDArray[Any] = np.empty(shape, dtype.numpy)
    flat = bytes_of(array)
    with header.path.open("rb", buffering=0) as file:
        file.seek(header.data_begins + begin)
        at = 0
        while at < nbytes:
            count = file.readinto(flat[at:].data)
            if not count:
                raise InputError("the file ends inside of a piece", where=where, got=at, expected=f"{nbytes} bytes")
            at += count
    return array, hashlib.sha256(flat.data).hexdigest()
