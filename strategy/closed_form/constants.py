"""Constants: the fitted figures of the models, each a positive number with a prior and a meaning.

A constant is fitted on a log scale around its prior; `spread` is the prior's standard deviation there, so 0.1 says
"within about 10 %". The fitted file keeps, with each value, its 90 % interval and the range of data that it rests on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from strategy.base.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted figure: its name, the centre and the spread of its prior, and what it says.

    Where one source alone tells it, `told_by` is that source, and `elsewhere` is what would be believed without its
    runs: the same of other systems.
    """

    name: str
    prior: float
    spread: float
    meaning: str
    told_by: str = ""
    elsewhere: float = 0.0


Constants = Mapping[str, float]
"""Value by name."""

_UNTOLD = 0.8
"""Spread of the prior of a constant that no run tells."""
MAXIMUM = 150
"""Fitted figures in all."""


def nominal(declared: Iterable[Constant]) -> dict[str, float]:
    """The priors' centres: what is believed before any measurement."""
    return {constant.name: constant.prior for constant in declared}


def without_source(declared: Iterable[Constant], source: str) -> list[Constant]:
    """The constants as they would be declared had nobody seen a source's runs."""
    return [
        replace(one, prior=one.elsewhere, spread=max(one.spread, _UNTOLD)) if one.told_by == source else one
        for one in declared
    ]


def parse_constants(entries: object, declared: Iterable[Constant], *, where: str) -> dict[str, float]:
    """The values of a document's constants; one that it lacks keeps its prior.

    Raises:
        InputError: no constants, a name that is not declared, or a value that is no positive number.
    """
    if not isinstance(entries, dict):
        raise InputError("no constants", where=where, expected='an object "constants"')
    values = nominal(declared)
    for name, entry in entries.items():
        value = entry.get("value") if isinstance(entry, dict) else None
        if name not in values:
            raise InputError("no such constant", where=f"{where}: {name}", hint=did_you_mean(name, values))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise InputError(
                "not a possible constant", where=f"{where}: {name}", got=value, expected="a number above 0"
            )
        values[name] = float(value)
    return values
