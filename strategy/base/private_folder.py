"""Private folders: where machine code is kept, since whoever can write there can run code as whoever reads it.

So a cache is used only in a folder of the user's own that nobody else can write to: numba's, where the user has named
one; beside the source; in the user's cache; in the temporary folder. Where there is none, nothing is kept, and every
process compiles anew.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path


@lru_cache
def cache_folder(source: Path) -> Path | None:
    """Where the machine code of the modules of one folder is kept: the first place that is safe and can be written."""
    for folder, mode in _candidates(source):
        with suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True, mode=mode)
            folder.mkdir(exist_ok=True, mode=mode)
            found = folder.resolve()  # a link could lead elsewhere later
            if is_private(found) and os.access(found, os.W_OK | os.X_OK):
                return found
    return None


def is_private(folder: Path) -> bool:
    """Whether nobody but the user and root can put files there, or another folder in its place."""
    mine = os.geteuid()
    status = folder.stat()
    if status.st_uid != mine or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return False
    for parent in folder.parents:
        status = parent.stat()
        open_to_all = status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, mine) or open_to_all:
            return False
    return True


def _candidates(source: Path) -> Iterator[tuple[Path, int]]:
    """Folders, and the mode in which each is made where it is missing."""
    name = f"{source.name}_{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named) / name, 0o700
    yield source / "__pycache__", 0o755
    with suppress(RuntimeError):  # a user without a home
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sbplan")
        if user.is_absolute():
            yield user / name, 0o700
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"sbplan-cache-{os.geteuid()}" / name, 0o700
