"""Outputs: places that a user names, checked before the work; CSV that no spreadsheet runs; a stdout of our words."""

from __future__ import annotations

import csv
import errno
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from strategy.base.errors import InputError

RUNS = Path("runs")
"""The folder of the run store, in the working folder."""


def check_output_path(path: Path | None, flag: str, *, new: bool = False) -> None:
    """Refuse a place where no file can be written; `new` refuses one that has a file already.

    Raises:
        InputError: the folder is not there, the path is a folder or none, or the file exists and must not.
    """
    if path is None:
        return
    try:
        path.lstat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise InputError(f"cannot be a file: {error.strerror}", where=f"{flag} {path}") from None
    if not path.parent.is_dir():
        raise InputError("no such folder", where=f"{flag} {path}", got=str(path.parent))
    if path.is_dir():
        raise InputError("is a folder", where=f"{flag} {path}", expected="the name of a file")
    if new and path.exists():
        raise InputError("exists already", where=f"{flag} {path}", hint="remove it, or choose another name")


def make_folder(path: Path | None, flag: str) -> None:
    """Make a folder for files, unless it is there.

    Raises:
        InputError: its parent is not there, it is a file, or it cannot be made.
    """
    if path is None:
        return
    try:
        if path.exists() and not path.is_dir():
            raise InputError("not a folder", where=f"{flag} {path}")
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise InputError("no folder can be made", where=f"{flag} {path}", got=error.strerror) from error


FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(lines: Iterable[Sequence[str]]) -> str:
    """The text of a CSV file. A cell that a spreadsheet would run as a formula begins with an apostrophe instead."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def _inert(cell: str) -> str:
    return f"'{cell}" if cell.startswith(FORMULA_SIGNS) and not _is_number(cell) else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def clean_stdout() -> Iterator[None]:
    """Send to stderr what native libraries print on stdout: HiGHS has been seen to, though told to be silent."""
    import ctypes

    standard = ctypes.CDLL(None)
    sys.stdout.flush()
    standard.fflush(None)
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        standard.fflush(None)  # C's own buffer would otherwise reach stdout at the exit
        os.dup2(kept, 1)
        os.close(kept)
