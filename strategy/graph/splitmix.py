"""splitmix64: random bits that are a function of a counter (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195).

Works on arrays of uint64 of any shape, in the arithmetic modulo 2^64 that NumPy and CuPy share.
"""

from __future__ import annotations

from typing import Any

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def counter_steps(begin: int, end: int, xp: Any) -> Any:
    """[end - begin], uint64: what the coordinates of a dim add to the state."""
    return xp.arange(begin + 1, end + 1, dtype=xp.uint64) * xp.uint64(_GOLDEN)


def mix(z: Any, shifted: Any, xp: Any) -> None:
    """The finaliser (figure 16), in place on `z`; `shifted` is an array of the same shape to work in."""
    for bits, factor in ((30, _FIRST), (27, _SECOND)):
        xp.right_shift(z, xp.uint64(bits), out=shifted)
        z ^= shifted
        z *= xp.uint64(factor)
    xp.right_shift(z, xp.uint64(31), out=shifted)
    z ^= shifted
