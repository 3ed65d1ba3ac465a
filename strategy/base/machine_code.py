"""Machine code of the hot loops: made by numba, without the lock of the interpreter, and kept on disk.

Unless a loop says otherwise, sums keep their order, so that the same inputs give the same bits; only NaN and the sign
of zero are given up, which no such loop relies on and which lets minima be taken by vector instructions.

What is kept on disk is machine code in pickles, in a private folder (`private_folder`), as long as no file changes of
the loops that are in it: a loop's code has that of all loops that it calls. To import this module is to
load numba, about a second: see `compiled`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from inspect import getfile, unwrap
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from strategy.base.errors import EnvironmentLacks
from strategy.base.private_folder import cache_folder


def machine_code(function: Callable[..., Any], **options: Any) -> Any:
    """numba's dispatcher of `function`, which keeps what it compiles.

    Raises:
        EnvironmentLacks: the compiler is switched off.
    """
    found = dispatcher(function, **options)
    if cache_folder(Path(getfile(function)).parent) is not None:
        found._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return found


def dispatcher(function: Callable[..., Any], **options: Any) -> Any:
    """numba's dispatcher of `function`: compiled for the types of its arguments when it is first called.

    Raises:
        EnvironmentLacks: the compiler is switched off.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        raise EnvironmentLacks("numba's compiler is switched off and is needed; unset NUMBA_DISABLE_JIT")
    return njit(nogil=True, error_model="numpy", **{"fastmath": {"nnan", "nsz"}, **options})(function)


@lru_cache
def _digest(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _files_of(function: Callable[..., Any]) -> list[str]:
    """Of a loop and of all that it calls, one by way of another."""
    found, waiting = {function}, [function]
    while waiting:
        one = waiting.pop()
        for name in one.__code__.co_names:
            called: Any = one.__globals__.get(name)
            if hasattr(type(called), "_numba_type_") and (inner := unwrap(called)) not in found:
                found.add(inner)
                waiting.append(inner)
    return sorted({getfile(one) for one in found})


class _Locator:
    """Tells numba where the code of a function is kept, and what its source is."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self._files = _files_of(function)
        self._line = function.__code__.co_firstlineno
        self._folder = folder

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> _Locator | None:
        folder = cache_folder(Path(path).parent)
        return None if folder is None else cls(function, folder)

    def ensure_cache_path(self) -> None:
        """The folder is there since it was chosen."""

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> bytes:
        return hashlib.sha256(b"".join(map(_digest, self._files))).digest()

    def get_disambiguator(self) -> str:
        return str(self._line)


class _Where(CompileResultCacheImpl):
    _locator_classes = [_Locator]  # noqa: RUF012 (as numba has it)


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
