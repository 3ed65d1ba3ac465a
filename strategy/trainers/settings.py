"""Settings: the keys of a trainer's file, and what became of each: used, unused, not priced, or not understood.

A reader asks for keys by name. What it asks for is used; what it has a reason to pass over is unused; what
`reviewed.toml` lists is unused or not priced, for the reason that stands there; what is left is not understood. A key
that a reader asks for and the file lacks is a default, and is stated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from strategy.base.errors import InputError, did_you_mean, report

Word = TypeVar("Word")
Listed = TypeVar("Listed")
MOST = 2**53
_TRUE = ("true", "1", "yes", "on", "")
_FALSE = ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class UsualValues:
    """Values of a key, by pattern, under which it changes nothing, and what another changes."""

    values: tuple[str, ...]
    changes: str

    def hold(self, value: object) -> bool:
        """Whether this is one of them; words differ not by case."""
        return any(fnmatchcase(str(value).lower(), pattern) for pattern in self.values)


@dataclass(frozen=True, slots=True)
class ReviewedKeys:
    """Keys of one trainer, by pattern, with the reason why nobody reads them.

    `unused` keys change neither the time of a step nor its memory; `unpriced` ones do, and no figure here follows them.
    `usual` keys change neither while their value is one of those listed, by pattern; with another they are not priced.
    """

    unused: Mapping[str, str]
    unpriced: Mapping[str, str]
    usual: Mapping[str, UsualValues]


@cache
def reviewed_keys(trainer: str) -> ReviewedKeys:
    """The reviewed table of a trainer."""
    text = (resources.files("strategy.trainers") / "reviewed.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text).get(trainer, {})

    def by_pattern(section: str) -> dict[str, str]:
        return {pattern: reason for reason, patterns in table.get(section, {}).items() for pattern in patterns}

    usual = {
        pattern: UsualValues(tuple(values), reason)
        for reason, keys in table.get("usual", {}).items()
        for pattern, values in keys.items()
    }
    return ReviewedKeys(by_pattern("unused"), by_pattern("unpriced"), usual)


class Settings:
    """The flat keys of one file. A null is a key that is not there, and so is `auto`.

    Attributes:
        values: key -> what the file says.
        where: the file.
        defaults: key -> the value that was taken since the file has none.
        unused: key -> why it changes neither time nor memory here.
        assumed: what was taken in place of what the file leaves open, in words.
        left_open: keys whose value is `auto`: whoever calls the trainer says it.
    """

    def __init__(self, values: Mapping[str, Any], where: str, trainer: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None and value != "auto"}
        self.left_open = frozenset(key for key, value in values.items() if value == "auto")
        self.where = where
        self.trainer = trainer
        self.defaults: dict[str, Any] = {}
        self.unused: dict[str, str] = {}
        self.assumed: list[str] = []
        self._used: set[str] = set()
        self._aside: dict[str, str] = {}
        self._problems: list[InputError] = []

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def value(self, key: str, default: Any = None) -> Any:
        """What stands there, whatever it is."""
        self._used.add(key)
        if key not in self.values:
            if default is not None:
                self.defaults[key] = default
            return default
        return self.values[key]

    def flag(self, key: str, default: bool = False) -> bool:
        """A truth value; a shell flag without a value is true. False is no default worth stating."""
        found = self.value(key, default or None)
        text = str(found).lower()
        if found is None or text in _FALSE:
            return False
        if text not in _TRUE:
            self.wrong(key, found, "true or false")
        return True

    def count(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number; a key without a default must be there."""
        found = self._number(key, default)
        if found is None:
            return least
        if found != int(found) or not least <= found <= MOST:
            self.wrong(key, self.values.get(key, found), f"a whole number of at least {least}")
            return least
        return int(found)

    def maybe(self, key: str, *, least: int = 1) -> int | None:
        """A whole number, or nothing where the key is not there."""
        if key in self.values:
            return self.count(key, least=least)
        self._used.add(key)
        return None

    def figure(self, key: str, default: float) -> float:
        """A finite number."""
        found = self._number(key, default)
        return default if found is None else float(found)

    def word(self, key: str, known: Mapping[str, Word], default: str) -> Word:
        """What one of few words means; words differ neither by case nor by `_` and `-`."""
        found = self.value(key, default)
        words = {_plain(name): meaning for name, meaning in known.items()}
        if _plain(found) not in words:
            self.wrong(key, found, ", ".join(known), hint=did_you_mean(str(found), known))
            return known[default]
        return words[_plain(found)]

    def words(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of words, as a list or as text with spaces, commas or brackets."""
        found = self.value(key, default or None)
        if found is None:
            return ()
        parts = found if isinstance(found, list | tuple) else str(found).strip("[]").replace(",", " ").split()
        return tuple(str(part).strip("'\"") for part in parts)

    def under(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        return [key for key in self.values if key.startswith(f"{prefix}.")]

    def pass_over(self, why: str, *patterns: str) -> None:
        """Keys that change neither time nor memory, given what else stands in the file."""
        for pattern in patterns:
            for key in self.values:
                if fnmatchcase(key, pattern) and key not in self._used:
                    self.unused[key] = why

    def set_aside(self, why: str, *keys: str) -> None:
        """Keys that another file overrides: as if they were not there."""
        for key in keys:
            if self.values.pop(key, None) is not None:
                self._aside[key] = why

    def assume(self, what: str) -> None:
        """State what was taken in place of what the file leaves open or no figure follows."""
        if what not in self.assumed:
            self.assumed.append(what)

    def wrong(self, key: str, got: Any, expected: str, *, hint: str = "") -> None:
        """Note what is wrong with a key; all of it is reported together."""
        self._problems.append(
            InputError("cannot be used", where=f"{self.where}: {key}", got=got, expected=expected, hint=hint)
        )

    def missing(self, key: str, expected: str) -> None:
        """Note a key that must be there."""
        near = get_close_matches(key, self.values.keys() - self._used, n=1, cutoff=0.85)
        hint = f"is {near[0]!r} meant?" if near else ""
        self._problems.append(InputError("is missing", where=f"{self.where}: {key}", expected=expected, hint=hint))

    def report(self) -> None:
        """Raise what is wrong, if anything is."""
        report(self._problems, where=self.where)

    def unpriced(self) -> dict[str, str]:
        """Key -> why it changes time or memory though no figure follows it; of those that nobody reads."""
        unused, reviewed = self.unused_keys(), reviewed_keys(self.trainer)
        listed = dict(self._matching(reviewed.unpriced))
        listed |= {key: usual.changes for key, usual in self._matching(reviewed.usual)}
        return {key: why for key, why in listed.items() if key not in unused}

    def unused_keys(self) -> dict[str, str]:
        """Key -> why it changes neither time nor memory."""
        reviewed = reviewed_keys(self.trainer)
        listed = dict(self._matching(reviewed.unused))
        listed |= {
            key: f"{self.values[key]}, as it stands, changes nothing"
            for key, usual in self._matching(reviewed.usual)
            if usual.hold(self.values[key])
        }
        own = {key: why for key, why in self.unused.items() if key not in self._used}
        return listed | own | self._aside

    def not_understood(self) -> list[str]:
        """Keys that nobody reads and no table lists."""
        known = {*self._used, *self.unpriced(), *self.unused_keys()}
        return sorted(key for key in self.values if key not in known)

    def slips(self) -> list[str]:
        """What may be a slip of the pen, in words: keys that nobody reads and that are nearly one that is not there."""
        near = {key: get_close_matches(key, self.defaults, n=1, cutoff=0.85) for key in self.not_understood()}
        return [
            f"{found[0]} is {self.defaults[found[0]]}, unless {key} means it" for key, found in near.items() if found
        ]

    def _matching(self, table: Mapping[str, Listed]) -> Iterator[tuple[str, Listed]]:
        for key in self.values:
            if key in self._used or key in self.unused:
                continue
            for pattern, why in table.items():
                if fnmatchcase(key, pattern):
                    yield key, why
                    break

    def _number(self, key: str, default: float | None) -> float | None:
        found = self.value(key, default)
        if found is None:
            self.missing(key, "a number")
            return None
        text = str(found).replace("_", "")
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if isinstance(found, bool) or not abs(number) <= MOST:
            self.wrong(key, found, "a number")
            return None
        return number


def _plain(word: object) -> str:
    return str(word).lower().replace("_", "-")
