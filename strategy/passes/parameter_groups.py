"""Parameter groups: parameters that are trained otherwise than the others, as PyTorch's optimisers have them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from strategy.base.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """What differs for some parameters; of several groups that mean one, the first counts.

    Attributes:
        names: patterns of names of parameters.
        lr_scale: their learning rate, as a multiple of the training's.
        weight_decay: theirs, vectors' too; none where the training's rule holds.
        optimizer: theirs, by its word; empty where it is the training's.
    """

    names: tuple[str, ...]
    lr_scale: float = 1.0
    weight_decay: float | None = None
    optimizer: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.names, str) or not self.names:
            raise InputError("no patterns of names", where="parameter group", got=self.names, expected='("*.bias",)')
        if not 0 <= self.lr_scale < math.inf:
            where = "parameter group: lr_scale"
            raise InputError("not possible", where=where, got=self.lr_scale, expected="a finite figure >= 0")
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            where = "parameter group: weight_decay"
            raise InputError("not possible", where=where, got=self.weight_decay, expected="a finite figure >= 0")

    def means(self, name: str) -> bool:
        """Whether a parameter is one of the group."""
        return any(fnmatchcase(name, pattern) for pattern in self.names)


def group_of(name: str, groups: Sequence[ParameterGroup]) -> int | None:
    """The number of the group that a parameter belongs to, if any."""
    return next((number for number, group in enumerate(groups) if group.means(name)), None)


def check_groups(groups: Sequence[ParameterGroup], names: Iterable[str]) -> None:
    """Refuse patterns that match no parameter that is trained.

    Raises:
        InputError: names the first one, and the nearest name.
    """
    known = list(names)
    for group in groups:
        for pattern in group.names:
            if not any(fnmatchcase(name, pattern) for name in known):
                hint = did_you_mean(pattern, known)
                raise InputError("a pattern matches no parameter", where="parameter group", got=pattern, hint=hint)
