"""Unevenness: what if alike ranks were not? `--straggler 3=1.5x`, `--slow-link 3=2x`, `--jitter 5%`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from strategy.base.errors import InputError, report

if TYPE_CHECKING:
    from simulator.engine import Jitter
    from strategy.program.program import Program

LARGEST_FACTOR = 1e6


@dataclass(frozen=True, slots=True)
class Unevenness:
    """By rank, how many times as long it computes and sends; by how much of its length, at most, an act is longer."""

    stragglers: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[int, float] = field(default_factory=dict)
    jitter_share: float = 0.0
    seed: int = 0

    def __bool__(self) -> bool:
        """Whether there is any: then no rank may stand for another."""
        return bool(self.stragglers or self.slow_links) or self.jitter_share > 0

    def applied(self, program: Program) -> tuple[Program, Jitter | None]:
        """The program with its stragglers and slow links, and the jitter of its acts."""
        from simulator.faults import random_jitter, with_slow_links, with_straggler

        for rank, factor in self.stragglers.items():
            program = with_straggler(program, rank, factor)
        for rank, factor in self.slow_links.items():
            program = with_slow_links(program, rank, factor)
        return program, random_jitter(program, self.jitter_share, self.seed) if self.jitter_share else None


def unevenness(
    stragglers: Sequence[str], slow_links: Sequence[str], jitter: str | None, seed: int | None, *, ranks: int
) -> Unevenness:
    """What was asked for, each straggler and slow link as `RANK=FACTORx`, the jitter as a percentage.

    Raises:
        InputError: with everything that cannot be.
    """
    problems: list[InputError] = []
    slow_ranks = _factors("--straggler", stragglers, ranks, problems)
    slow_ports = _factors("--slow-link", slow_links, ranks, problems)
    share = 0.0
    try:
        share = 0.0 if jitter is None else _share(jitter)
    except InputError as error:
        problems.append(error)
    if seed is not None and jitter is None:
        problems.append(InputError("a seed of nothing", where="--seed", hint="give --jitter, too"))
    if seed is not None and seed < 0:
        problems.append(InputError("not a seed", where="--seed", got=seed, expected="a whole number, not negative"))
    report(problems, where="simulate")
    return Unevenness(slow_ranks, slow_ports, share, seed or 0)


def _factors(flag: str, texts: Sequence[str], ranks: int, problems: list[InputError]) -> dict[int, float]:
    """By rank; what cannot be is added to the problems."""
    found: dict[int, float] = {}
    for text in texts:
        try:
            rank, factor = _factor(flag, text, ranks)
        except InputError as error:
            problems.append(error)
            continue
        if rank in found:
            problems.append(InputError("given more than once", where=f"{flag} {rank}"))
        found[rank] = factor
    return found


def _factor(flag: str, text: str, ranks: int) -> tuple[int, float]:
    where, (rank, _, factor) = f"{flag} {text}", text.partition("=")
    if not rank.isdecimal() or int(rank) >= ranks:
        raise InputError("not a rank of the plan", where=where, got=rank, expected=f"0 to {ranks - 1}")
    try:
        times = float(factor.removesuffix("x")) if factor.endswith("x") else math.nan
    except ValueError:
        times = math.nan
    if not 0 < times <= LARGEST_FACTOR:
        expected = f'a factor such as "1.5x", above zero, at most {LARGEST_FACTOR:g}'
        raise InputError("not a factor", where=where, got=factor, expected=expected)
    return int(rank), times


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else math.nan
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise InputError("not a percentage", where="--jitter", got=text, expected='"0%" to "100%", such as "5%"')
    return share
