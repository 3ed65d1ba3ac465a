"""Fitted constants: those of the closed-form models and the strata of their intervals, as a file and as values.

The file keeps, for each constant, its value, its 90 % interval and its prior, and for each stratum the half-width of
its intervals and the range of runs that it rests on; `provenance` says from what it was fitted, and how.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from strategy.base.errors import InputError
from strategy.base.files import read_json, write_atomic
from strategy.closed_form import collectives, exchange, frameworks, kernels, memory, price
from strategy.closed_form.constants import Constants, parse_constants
from strategy.closed_form.fit import Fit
from strategy.closed_form.interval import Stratum
from strategy.closed_form.memory_error import PERCENTS, MemoryErrors

FORMAT = 1
TIME = (*kernels.CONSTANTS, *exchange.CONSTANTS, *price.CONSTANTS, *frameworks.CONSTANTS)
DECLARED = (*collectives.CONSTANTS, *TIME, *memory.CONSTANTS)
"""Every fitted figure; there are at most `constants.MAXIMUM`."""
_SHIPPED = "published.json"


@dataclass(frozen=True, slots=True)
class FittedConstants:
    """Values of all constants, strata of the intervals, errors of memory, and what guesses cost, where known."""

    constants: Constants
    strata: Mapping[str, Stratum]
    memory: MemoryErrors | None = None
    guesses: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@cache
def shipped() -> FittedConstants:
    """The constants that come with the package, fitted to the open published measurements; read once."""
    with resources.as_file(resources.files("strategy.closed_form") / _SHIPPED) as path:
        return read_constants(path)


def read_constants(path: Path) -> FittedConstants:
    """Fitted constants from their file; one that the file lacks keeps its prior.

    Raises:
        InputError: no such file, another format, an unknown constant, or a figure that cannot be.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError("not fitted constants of the closed-form models", where=str(path), expected=f"format {FORMAT}")
    values = parse_constants(document.get("constants"), DECLARED, where=str(path))
    known = {}
    entries = document.get("strata")
    if not isinstance(entries, dict) or "" not in entries:
        raise InputError("no strata", where=str(path), expected='"strata" with an entry "" for all runs')
    for name, entry in entries.items():
        try:
            ranges = {key: (float(low), float(high)) for key, (low, high) in entry["ranges"].items()}
            devices = tuple(str(device) for device in entry["devices"])
            known[name] = Stratum(float(entry["half_width"]), int(entry["runs"]), devices, ranges)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(f"not a stratum: {error}", where=f"{path}: strata[{name!r}]") from None
        if not 0 <= known[name].half_width < float("inf"):
            raise InputError("not a possible half-width", where=f"{path}: strata[{name!r}]", got=entry["half_width"])
    errors = None if "memory" not in document else _memory_errors(document["memory"], where=f"{path}: memory")
    guesses = _guesses(document.get("guesses", {}), where=f"{path}: guesses")
    return FittedConstants(MappingProxyType(values), MappingProxyType(known), errors, guesses)


def _guesses(entry: object, *, where: str) -> Mapping[str, float]:
    """What guesses cost, on the log scale.

    Raises:
        InputError: no finite figures of at least 0.
    """
    if not isinstance(entry, dict):
        raise InputError("no costs of guesses", where=where, got=entry, expected="an object")
    for name, cost in entry.items():
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not 0 <= cost < math.inf:
            raise InputError(
                "not a possible cost", where=f"{where}: {name}", got=cost, expected="a number of at least 0"
            )
    return MappingProxyType({str(name): float(cost) for name, cost in entry.items()})


def _memory_errors(entry: object, *, where: str) -> MemoryErrors:
    """Errors of memory from their entry.

    Raises:
        InputError: a key is missing, a figure is none, or percentiles do not ascend.
    """
    try:
        scales = {str(name): float(scale) for name, scale in entry["scales"].items()}  # type: ignore[index]
        near, far = (tuple(float(value) for value in entry[way]) for way in ("near", "far"))  # type: ignore[index]
        found = MemoryErrors(int(entry["runs"]), MappingProxyType(scales), near, far)  # type: ignore[index]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"no errors of memory: {error}", where=where) from None
    figures = (*found.near, *found.far, *found.scales.values())
    ascending = all(list(way) == sorted(way) and len(way) == PERCENTS + 1 for way in (found.near, found.far))
    if not ascending or not all(map(math.isfinite, figures)) or min(found.scales.values(), default=1.0) <= 0:
        expected = f"scales above 0, and near and far with {PERCENTS + 1} ascending percentiles each"
        raise InputError("not possible errors of memory", where=where, expected=expected)
    return found


def write_constants(
    path: Path, fits: Mapping[str, Fit], strata: Mapping[str, Stratum], memory: MemoryErrors,
    guesses: Mapping[str, float], provenance: object,
) -> None:  # fmt: skip
    """Write fitted constants; `fits` by what they were fitted to. Constants that no fit holds are left out."""
    fitted = {name: (fit, source) for source, fit in fits.items() for name in fit.values}
    constants = {}
    for constant in DECLARED:
        if constant.name not in fitted:
            continue
        fit, source = fitted[constant.name]
        value, half = fit.values[constant.name], fit.half_widths[constant.name]
        constants[constant.name] = {
            "value": _digits(value),
            "low": _digits(value * math.exp(-half)),
            "high": _digits(value * math.exp(half)),
            "prior": constant.prior,
            "source": source,
            "meaning": constant.meaning,
        }
    document = {
        "format": FORMAT,
        "provenance": provenance,
        "constants": constants,
        "strata": {
            name: {
                "half_width": _digits(s.half_width),
                "runs": s.runs,
                "devices": list(s.devices),
                "ranges": {k: list(v) for k, v in s.ranges.items()},
            }
            for name, s in strata.items()
        },
        "memory": {
            "runs": memory.runs,
            "scales": {name: _digits(scale) for name, scale in memory.scales.items()},
            "near": [_digits(value) for value in memory.near],
            "far": [_digits(value) for value in memory.far],
        },
        "guesses": {name: _digits(cost) for name, cost in guesses.items()},
    }
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
