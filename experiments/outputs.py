"""Outputs: places that a user names to write to, checked before the work, not after it."""

from __future__ import annotations

from pathlib import Path

from strategy.errors import InputError


def check_place(path: Path | None, flag: str, *, new: bool = False) -> None:
    """Refuse a place where no file can be written; `new` refuses one that has a file already.

    Raises:
        InputError: the folder is not there, the path is a folder, or the file exists and must not.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise InputError("no such folder", where=f"{flag} {path}", got=str(path.parent))
    if path.is_dir():
        raise InputError("is a folder", where=f"{flag} {path}", expected="the name of a file")
    if new and path.exists():
        raise InputError("exists already", where=f"{flag} {path}", hint="remove it, or choose another name")
