"""What a campaign finds: failures, what its cases exercised, and whether that was enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Collected over the cases. `quotas` are the least share of the cases that must exercise something."""

    quotas: Mapping[str, float]
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, problems: Iterable[str], exercised: Iterable[str]) -> None:
        """One case: what was wrong with it, and what it exercised."""
        self.cases += 1
        self.failures += [f"{name}: {problem}" for problem in problems]
        self.coverage.update(set(exercised))

    def unmet(self) -> list[str]:
        """Quotas that the cases so far do not meet."""
        wanted = {key: int(share * self.cases) for key, share in self.quotas.items()}
        return [
            f"{key}: {self.coverage[key]} cases, wanted {least}"
            for key, least in wanted.items()
            if self.coverage[key] < least
        ]


def survived(findings: Iterable[str]) -> Iterator[str]:
    """The findings of one case; that it crashed is one, and no reason to end the campaign."""
    try:
        yield from findings
    except Exception as error:  # noqa: BLE001 - whatever is tried out may raise anything
        yield f"{type(error).__name__}: {error}"
