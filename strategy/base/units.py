"""Sizes, rates and times: parsed from text, and printed, in this one place.

`"80 GiB"`, `"400 Gbit/s"`, `"312 TFLOP/s"`, `"5 us"`. A figure without a unit is refused, because
`bandwidth = 400` has been read as bits, bytes and gigabytes by three people in one room.
"""

from __future__ import annotations

import math
import re

from strategy.base.errors import InputError

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

SIZE_UNITS = {f"{prefix}B": scale for prefix, scale in {**_DECIMAL, **_BINARY}.items()}
BANDWIDTH_UNITS = {
    **{f"{prefix}B/s": scale for prefix, scale in {**_DECIMAL, **_BINARY}.items()},
    **{f"{prefix}bit/s": scale / 8 for prefix, scale in _DECIMAL.items()},
}
COMPUTE_UNITS = {f"{prefix}FLOP/s": scale for prefix, scale in _DECIMAL.items()}
TIME_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]+)\s*")


def _parse(text: object, units: dict[str, float], *, where: str, example: str, zero_ok: bool) -> float:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise InputError(
            "not a figure with a unit",
            where=where,
            got=text,
            expected=f'text such as "{example}" (units: {", ".join(units)})',
        )
    value = float(match[1]) * units[match[2]]
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero_ok):
        wanted = "finite and not negative" if zero_ok else "finite and above zero"
        raise InputError("not a possible figure", where=where, got=text, expected=f"a figure that is {wanted}")
    return value


def parse_bytes(text: object, *, where: str = "size") -> int:
    """`"80 GiB"` -> bytes, at least one."""
    nbytes = round(_parse(text, SIZE_UNITS, where=where, example="80 GiB", zero_ok=False))
    if nbytes < 1:
        raise InputError("not a possible figure", where=where, got=text, expected="at least one byte")
    return nbytes


def parse_bandwidth(text: object, *, where: str = "bandwidth") -> float:
    """`"400 Gbit/s"` or `"50 GB/s"` -> bytes per second."""
    return _parse(text, BANDWIDTH_UNITS, where=where, example="400 Gbit/s", zero_ok=False)


def parse_compute(text: object, *, where: str = "compute") -> float:
    """`"312 TFLOP/s"` -> FLOP per second."""
    return _parse(text, COMPUTE_UNITS, where=where, example="312 TFLOP/s", zero_ok=False)


def parse_seconds(text: object, *, where: str = "time") -> float:
    """`"5 us"` -> seconds; zero is allowed."""
    return _parse(text, TIME_UNITS, where=where, example="5 us", zero_ok=True)


def format_bytes(nbytes: float) -> str:
    """Bytes for people: `1.5 GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(nbytes) >= SIZE_UNITS[unit]:
            return f"{nbytes / SIZE_UNITS[unit]:.2f} {unit}"
    return f"{nbytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds for people: `12.3 ms`."""
    for unit in ("s", "ms", "us"):
        if abs(seconds) >= TIME_UNITS[unit]:
            return f"{seconds / TIME_UNITS[unit]:.3g} {unit}"
    return f"{seconds / TIME_UNITS['ns']:.0f} ns"


def to_ns(seconds: float) -> int:
    """Seconds -> integer nanoseconds: the one rounding between the cost model and the clocks."""
    return round(seconds * 1e9)
