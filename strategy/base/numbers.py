"""Numbering (interning): equal values get the same number; a value seen before is found by its identity.

Alike layers share specs and layouts. Their hashes are made of many parts, and are asked for all the time.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from strategy.base.identity import Identity

Known = TypeVar("Known", bound=Hashable)


class Numbers(Generic[Known]):
    """Numbers from 0, in the order in which values are first asked for."""

    def __init__(self) -> None:
        self._of_value: dict[Known, int] = {}
        self._of_identity: dict[Identity, int] = {}
        self._values: list[Known] = []

    def of(self, value: Known) -> int:
        """The number of a value, a new one if nothing equal has one."""
        key = Identity(value)
        found = self._of_identity.get(key)
        if found is None:
            found = self._of_value.setdefault(value, len(self._values))
            if found == len(self._values):
                self._values.append(value)
            self._of_identity[key] = found
        return found

    def __getitem__(self, number: int) -> Known:
        """The value of a number."""
        return self._values[number]

    def __len__(self) -> int:
        """The number of different values."""
        return len(self._values)
