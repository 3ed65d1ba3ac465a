"""How the hot loops are compiled: by numba, without the lock of the interpreter, and kept on disk.

Sums keep their order, so that the same inputs give the same bits; only NaN and the sign of zero are given up, which no
loop here relies on and which lets minima be taken by vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function`, compiled for the types of its arguments when it is first called."""
    return cast(Function, njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"})(function))


def in_place(function: Function) -> Function:
    """The same, for what makes no arrays but works on those given: then no references to arrays are counted."""
    options: dict[str, Any] = {"_nrt": False}
    return cast(
        Function, njit(cache=True, nogil=True, error_model="numpy", fastmath={"nnan", "nsz"}, **options)(function)
    )
