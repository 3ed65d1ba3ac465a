"""Texts as bytes that are read when they are asked for: parts of a file, or of many files in memory.

A file is read by calls, never mapped: of a mapped file that was cut off, or whose disk fails, the kernel kills whoever
looks at it, and nobody learns which file it was.
"""

from __future__ import annotations

import os
import weakref
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from strategy.base.errors import InputError

CHUNK_NBYTES = 1 << 24
"""Of a text that is looked through."""


class Text(Protocol):
    """Bytes by position; a uint8 array is one."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def __getitem__(self, cut: slice, /) -> NDArray[np.uint8]:
        """Those of a cut without steps."""
        ...


@final
class _OpenFile:
    """A file that is closed when nothing reads from it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)


@dataclass(frozen=True, slots=True)
class FileText:
    """The bytes [begin, end) of a file, read anew at every use."""

    path: Path
    file: _OpenFile
    begin: int
    end: int

    def part(self, begin: int, end: int) -> FileText:
        """The bytes [begin, end) of this text as a text."""
        return replace(self, begin=self.begin + begin, end=self.begin + end)

    def where_is(self, position: int) -> str:
        """Where a byte stands, for people."""
        return f"data {self.path}, byte {self.begin + position}"

    def __len__(self) -> int:
        """How many bytes there are, or were when it was opened."""
        return self.end - self.begin

    def __getitem__(self, cut: slice, /) -> NDArray[np.uint8]:
        """Read a cut without steps.

        Raises:
            InputError: it can no longer be read; with file and position.
        """
        begin, end, _ = cut.indices(len(self))
        found = np.empty(max(end - begin, 0), np.uint8)
        done = 0
        while done < found.size:
            try:
                count = os.preadv(self.file.descriptor, [found[done:].data], self.begin + begin + done)
            except OSError as error:
                hint = "see to the disk, and go on from the newest checkpoint with --resume"
                where = self.where_is(begin + done)
                raise InputError("the text cannot be read", where=where, got=error.strerror, hint=hint) from error
            if count == 0:
                raise InputError(
                    "the text ends here, and was longer when the training began",
                    where=self.where_is(begin + done),
                    expected=f"{self.end} bytes",
                    hint="put back the text as it was, and go on from the newest checkpoint with --resume",
                )
            done += count
        return found


@dataclass(frozen=True, slots=True, eq=False)
class FolderText:
    """The bytes of several files, one behind the other, in memory.

    Attributes:
        content: all of them.
        files: the name of each, and where it begins.
        begin: where `content` begins in these.
    """

    content: NDArray[np.uint8]
    files: tuple[tuple[int, str], ...]
    begin: int = 0

    def part(self, begin: int, end: int) -> FolderText:
        """The bytes [begin, end) of this text as a text."""
        return FolderText(self.content[begin:end], self.files, self.begin + begin)

    def where_is(self, position: int) -> str:
        """Where a byte stands, for people."""
        at = self.begin + position
        begin, name = self.files[bisect_right(self.files, at, key=lambda file: file[0]) - 1]
        return f"data {name}, byte {at - begin}"

    def __len__(self) -> int:
        """How many bytes there are."""
        return len(self.content)

    def __getitem__(self, cut: slice, /) -> NDArray[np.uint8]:
        """A cut, without a copy."""
        return self.content[cut]


def open_text(path: Path) -> FileText:
    """The text of a file.

    Raises:
        OSError: it cannot be opened.
    """
    file = _OpenFile(path)
    return FileText(path, file, 0, os.fstat(file.descriptor).st_size)
