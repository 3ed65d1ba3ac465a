"""Sizes, rates and times: parsed from text, and printed, in this one place.

`"80 GiB"`, `"400 Gbit/s"`, `"312 TFLOP/s"`, `"5 us"`. A figure without a unit is refused, because
`bandwidth = 400` has been read as bits, bytes and gigabytes by three people in one room.
"""

from __future__ import annotations

import re

from strategy.base.errors import InputError
from strategy.base.limits import LARGEST, LONGEST_ACT_S, LONGEST_S

_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

SIZE_UNITS = {f"{prefix}B": scale for prefix, scale in {**_DECIMAL, **_BINARY}.items()}
BANDWIDTH_UNITS = {
    **{f"{prefix}B/s": scale for prefix, scale in {**_DECIMAL, **_BINARY}.items()},
    **{f"{prefix}bit/s": scale / 8 for prefix, scale in _DECIMAL.items()},
}
COMPUTE_UNITS = {f"{prefix}FLOP/s": scale for prefix, scale in _DECIMAL.items()}
TIME_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

GBIT_PER_S = BANDWIDTH_UNITS["Gbit/s"]
"""In bytes per second."""

_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z/]+)\s*")


def _parse(text: object, units: dict[str, float], *, where: str, example: str, least: float, most: float) -> float:
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in units:
        raise InputError(
            "not a figure with a unit",
            where=where,
            got=text,
            expected=f'text such as "{example}" (units: {", ".join(units)})',
        )
    value = float(match[1]) * units[match[2]]
    if not least <= value <= most:
        base = next(unit for unit, scale in units.items() if scale == 1.0)
        expected = f"{least:g} to {most:.3g} {base}"
        raise InputError("not a possible figure", where=where, got=text, expected=expected)
    return value


def parse_bytes(text: object, *, where: str = "size") -> int:
    """`"80 GiB"` -> bytes, at least one."""
    return round(_parse(text, SIZE_UNITS, where=where, example="80 GiB", least=1, most=LARGEST))


def parse_bandwidth(text: object, *, where: str = "bandwidth") -> float:
    """`"400 Gbit/s"` or `"50 GB/s"` -> bytes per second."""
    return _parse(text, BANDWIDTH_UNITS, where=where, example="400 Gbit/s", least=1, most=LARGEST)


def parse_compute(text: object, *, where: str = "compute") -> float:
    """`"312 TFLOP/s"` -> FLOP per second."""
    return _parse(text, COMPUTE_UNITS, where=where, example="312 TFLOP/s", least=1, most=LARGEST)


def parse_seconds(text: object, *, where: str = "time") -> float:
    """`"5 us"` -> seconds; zero is allowed."""
    return _parse(text, TIME_UNITS, where=where, example="5 us", least=0, most=LONGEST_S)


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


def format_duration(seconds: float) -> str:
    """What may take days, for people: `2.5 h`, `260 d`."""
    for unit in ("d", "h", "min"):
        if seconds >= 2 * TIME_UNITS[unit]:
            return f"{seconds / TIME_UNITS[unit]:.3g} {unit}"
    return format_seconds(seconds)


def to_ns(seconds: float) -> int:
    """Seconds -> integer nanoseconds: the one rounding between the cost model and the clocks.

    Raises:
        InputError: longer than any act can be.
    """
    if not seconds <= LONGEST_ACT_S:
        raise InputError(
            "an act takes too long to be counted",
            got=f"{seconds:g} s",
            expected=f"at most {LONGEST_ACT_S:g} s",
            hint="is a size too large, or a bandwidth, a compute rate or a latency wrong?",
        )
    return round(seconds * 1e9)
