"""Suites as TOML: experiments in order, some of them drawn out over lists of values, some smaller with `--quick`.

    name = "schedules"
    include = ["memory.toml"]        # suites beside this one, whose experiments come first

    [[experiments]]
    kind = "pipeline"                # which keys there are beside: `experiment.py`
    name = "{schedule}-{micro_batches}"
    stages = 8
    quick = false                    # left out with --quick; or a table of the keys that differ then
    [experiments.over]               # one experiment for every choice of one value from each list
    schedule = ["1f1b", "zbv"]
    micro_batches = [8, 16, 32]

A key of `over` and `quick` may lead into a table: `"pins.tp" = [1, 2]`.
"""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.suites.experiment import Experiment
from strategy.base.errors import InputError, did_you_mean, report

SHIPPED = Path(__file__).parent
MOST_EXPERIMENTS = 10_000
_KEYS = ("name", "include", "experiments")


@dataclass(frozen=True, slots=True)
class SuiteExperiment:
    """An experiment, and the name of the suite that lists it."""

    suite: str
    experiment: Experiment

    @property
    def inputs(self) -> dict[str, object]:
        """What its run is told by, as JSON has it: the same inputs, the same experiment."""
        return {"suite": self.suite, "experiment": msgspec.json.decode(msgspec.json.encode(self.experiment))}


def find_suite(text: str) -> Path:
    """The file of a suite: a path, or the name of a suite that comes with the package."""
    shipped = SHIPPED / text
    return shipped if not Path(text).exists() and Path(text).name == text and shipped.exists() else Path(text)


def read_suite(path: Path, *, quick: bool = False) -> tuple[SuiteExperiment, ...]:
    """The experiments of a suite, those of the suites that it includes first.

    Raises:
        InputError: a file is missing, is no TOML, includes itself, or has a wrong key or value; all problems at once.
    """
    found = tuple(_read(path, quick=quick, outer=()))
    counts = Counter((one.suite, one.experiment.name) for one in found)
    twice = [f"{suite}: {name}" for (suite, name), count in counts.items() if count > 1]
    if twice:
        raise InputError("names that several experiments have", where=str(path), got=twice, hint="name them apart")
    return found


def _read(path: Path, *, quick: bool, outer: tuple[Path, ...]) -> Iterator[SuiteExperiment]:
    if path.resolve() in outer:
        raise InputError("a suite includes itself", where=str(path))
    document = _document(path)
    name = document.get("name")
    if not isinstance(name, str) or not name:
        raise InputError("a suite has a name", where=f"{path}: name", got=name, expected="a text")
    for other in _list(document, "include", path):
        if not isinstance(other, str):
            raise InputError("not a file name", where=f"{path}: include", got=other)
        yield from _read(path.parent / other, quick=quick, outer=(*outer, path.resolve()))
    problems: list[InputError] = []
    for number, table in enumerate(_list(document, "experiments", path)):
        where = f"{path}: experiments[{number}]"
        try:
            for one in _drawn_out(table, where, quick=quick):
                yield SuiteExperiment(name, _converted(one, where))
        except InputError as error:
            problems.append(error)
    report(problems, where=str(path))


def _document(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        names = ", ".join(sorted(one.name for one in SHIPPED.glob("*.toml")))
        raise InputError("no such suite", where=str(path), hint=f"shipped: {names}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("cannot be read as TOML", where=str(path), got=str(error)) from error
    for key in document:
        if key not in _KEYS:
            raise InputError("unknown key", where=str(path), got=key, hint=did_you_mean(key, _KEYS))
    return document


def _list(document: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    found = document.get(key, [])
    if not isinstance(found, list):
        raise InputError("not a list", where=f"{path}: {key}", got=found)
    return found


def _drawn_out(table: Any, where: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """A table for every choice of values; none where `--quick` leaves it out."""
    if not isinstance(table, dict):
        raise InputError("not a table", where=where, got=table)
    base = deepcopy(table)
    over, changed = base.pop("over", {}), base.pop("quick", {})
    if not isinstance(over, dict) or not all(isinstance(values, list) and values for values in over.values()):
        raise InputError("not lists of values", where=f"{where}.over", got=over, expected="such as {tp = [1, 2]}")
    if not isinstance(changed, bool | dict):
        raise InputError("neither true, false nor a table", where=f"{where}.quick", got=changed)
    if quick and changed is False:
        return
    if quick and isinstance(changed, dict):
        for key, value in changed.items():
            if key in over:
                if not isinstance(value, list) or not value:
                    raise InputError("not a list of values", where=f"{where}.quick.{key}", got=value)
                over[key] = value
            else:
                _put(base, key, value, where)
    combinations = list(itertools.islice(itertools.product(*over.values()), MOST_EXPERIMENTS + 1))
    if len(combinations) > MOST_EXPERIMENTS:
        raise InputError("too many experiments", where=f"{where}.over", expected=f"at most {MOST_EXPERIMENTS}")
    for values in combinations:
        one = deepcopy(base)
        for key, value in zip(over, values, strict=True):
            _put(one, key, value, where)
        if isinstance(one.get("name"), str):
            one["name"] = _filled_in(one["name"], one)
        yield one


def _filled_in(text: str, values: Mapping[str, Any], prefix: str = "") -> str:
    """A name with `{key}` replaced by the value of that key, `{pins.tp}` by that of `tp` in `pins`."""
    for key, value in values.items():
        if isinstance(value, dict):
            text = _filled_in(text, value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "name":
            text = text.replace(f"{{{prefix}{key}}}", str(value))
    return text


def _put(table: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set a key; `pins.tp` is the key `tp` of the table `pins`."""
    *outer, last = key.split(".")
    for name in outer:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise InputError("not a table", where=f"{where}.{key}", got=table)
    table[last] = value


def _converted(table: dict[str, Any], where: str) -> Experiment:
    try:
        found: Experiment = msgspec.convert(table, Experiment)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise InputError(problem, where=f"{where}{path.removesuffix('`')}") from None
    return found
