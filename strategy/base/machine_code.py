"""Machine code of the hot loops: made by numba, without the lock of the interpreter, and kept on disk.

Unless a loop says otherwise, sums keep their order, so that the same inputs give the same bits; only NaN and the sign
of zero are given up, which no such loop relies on and which lets minima be taken by vector instructions.

What is kept on disk is machine code in pickles: who can write there can run code as whoever reads it. So a cache is
used only in a folder of the user's own that nobody else can write to: numba's, where the user has named one; beside the
source; in the user's cache; in the temporary folder. Where there is none, nothing is kept, and every process compiles
anew. To import this module is to load numba, about a second: see `compiled`.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from inspect import getfile
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.misc.appdirs import AppDirs

from strategy.base.errors import EnvironmentLacks


def machine_code(function: Callable[..., Any], **options: Any) -> Any:
    """numba's dispatcher of `function`: compiled for the types of its arguments when it is first called.

    Raises:
        EnvironmentLacks: the compiler is switched off.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise EnvironmentLacks("numba's compiler is switched off and is needed; unset NUMBA_DISABLE_JIT")
    found: Any = njit(nogil=True, error_model="numpy", **{"fastmath": {"nnan", "nsz"}, **options})(function)
    if cache_folder(Path(getfile(function)).parent) is not None:
        found._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return found


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
    if config.CACHE_DIR:  # type: ignore[attr-defined]
        yield Path(config.CACHE_DIR) / name, 0o700  # type: ignore[attr-defined]
    yield source / "__pycache__", 0o755
    user = Path(AppDirs("sbplan", False).user_cache_dir)  # type: ignore[no-untyped-call]
    if user.is_absolute():  # a user without a home has a relative one
        yield user / name, 0o700
    with suppress(OSError):
        yield Path(tempfile.gettempdir()) / f"sbplan-cache-{os.geteuid()}" / name, 0o700


@lru_cache
def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


class _Locator:
    """Tells numba where the code of a function is kept, and what its source is."""

    def __init__(self, function: Callable[..., Any], path: str, folder: Path) -> None:
        self._py_file = path
        self._line = function.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> _Locator | None:
        folder = cache_folder(Path(path).parent)
        return None if folder is None else cls(function, path, folder)

    def ensure_cache_path(self) -> None:
        """The folder is there since it was chosen."""

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> bytes:
        return _digest(self._py_file)

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Where(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # type: ignore[list-item]  # noqa: RUF012 (as numba has it)


class _Cache(FunctionCache):
    """numba's cache; code that cannot be read is compiled, and code that cannot be kept, as on a full disk, is not."""

    _impl_class = _Where

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)  # type: ignore[no-untyped-call]
        except OSError:
            return None
        except (AttributeError, ImportError):
            # an older version kept it, whose argument types had other names
            with suppress(OSError):
                self.flush()  # type: ignore[no-untyped-call]
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(signature, data)  # type: ignore[no-untyped-call]
