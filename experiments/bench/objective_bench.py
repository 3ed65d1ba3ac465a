"""How far the objective is from the simulation: plans pinned at random, of pairs of a model and a cluster.

The search minimises the objective, and bounds it; the simulation is what the executor's order of acts makes of the same
prices. Where the two are apart, the search minimises something else than the time of a step.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from experiments.bench.joint_bench import words
from experiments.bench.objective_problems import QUOTAS, PinnedProblem
from experiments.explanation.exposure import CAUSES, differences_s
from experiments.planning.prices import KeptSimulations
from experiments.published.published_searches import MOST_OFF
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError, RunError
from strategy.search.search import search

MOST_TRIES = 10
"""So many problems are tried in the place of one that has no plan in time."""


@dataclass(frozen=True, slots=True)
class MeasuredObjective:
    """The objective of a plan and its simulated step.

    `differences_s` say by cause what the objective counts more (`experiments.explanation.exposure`); `covers` which
    quotas.
    """

    name: str
    what: str
    schedule: str
    devices: int
    objective_s: float
    step_time_s: float
    differences_s: Mapping[str, float]
    covers: frozenset[str]
    time_s: float

    @property
    def off(self) -> float:
        """How far the objective is off the simulation, as a share of that."""
        return self.objective_s / self.step_time_s - 1

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self) | {"covers": sorted(self.covers), "off": self.off}


def measured(problems: Iterator[PinnedProblem], time_limit_s: float) -> MeasuredObjective | None:
    """The first of some problems that has a plan in time; None if none of `MOST_TRIES` has."""
    for _, problem in zip(range(MOST_TRIES), problems, strict=False):
        begin, simulator = time.monotonic(), KeptSimulations()
        try:
            plan = search(problem.request, simulate=simulator, budget=Budget.of(time_limit_s)).plan
        except (InfeasibleError, OutOfTimeError):
            continue
        claims = plan.claims
        return MeasuredObjective(
            problem.name,
            words(plan.config),
            problem.schedule,
            problem.request.devices,
            claims.objective_s,
            claims.step_time_s,
            differences_s(plan.priced, simulator.of(plan)),
            problem.covers,
            time.monotonic() - begin,
        )
    return None


def covered(found: Iterable[MeasuredObjective]) -> dict[str, int]:
    """Quota -> how many pairs count for it."""
    counts = dict.fromkeys(QUOTAS, 0)
    for one in found:
        for name in one.covers & counts.keys():
            counts[name] += 1
    return counts


def check_covered(found: Sequence[MeasuredObjective], pairs: int) -> None:
    """Refuse pairs that cover less than they should.

    Raises:
        RunError: of what there is too little.
    """
    counts = covered(found)
    short = [f"{name} {counts[name]}" for name, share in QUOTAS.items() if counts[name] < int(share * pairs)]
    if short:
        raise RunError(f"the pairs cover too little: {', '.join(short)}; take another seed or a longer time limit")


def summary(found: Sequence[MeasuredObjective]) -> dict[str, dict[str, float]]:
    """Schedule, and all -> how many, the worst and the median share that the objective is off, without sign.

    And by cause, what the objective counts more, as a mean share of the step.
    """
    rows = {name: [one for one in found if one.schedule == name] for name in sorted({one.schedule for one in found})}
    return {
        name: {
            "pairs": len(some),
            "worst": max(abs(one.off) for one in some),
            "median": median(abs(one.off) for one in some),
            **{cause: sum(one.differences_s[cause] / one.step_time_s for one in some) / len(some) for cause in CAUSES},
        }
        for name, some in {**rows, "all": found}.items()
        if some
    }


def line(one: MeasuredObjective) -> str:
    """A pair: how far it is off, and why."""
    causes = ", ".join(
        f"{name} {seconds / one.step_time_s:+.1%}"
        for name, seconds in sorted(one.differences_s.items(), key=lambda item: -abs(item[1]))
        if abs(seconds) >= 1e-3 * one.step_time_s
    )
    steps = f"objective {one.objective_s:.4f} s, simulated {one.step_time_s:.4f} s, {one.off:+.2%}"
    return f"{one.name}: {one.what}: {steps} ({causes or 'nothing'})"


def table(found: Sequence[MeasuredObjective]) -> str:
    """The summary as text."""
    head = f"{'schedule':<14}{'pairs':>6}{'worst':>9}{'median':>9}" + "".join(f"{cause:>13}" for cause in CAUSES)
    lines = [head]
    for name, row in summary(found).items():
        causes = "".join(f"{row[cause]:>+13.2%}" for cause in CAUSES)
        lines.append(f"{name:<14}{row['pairs']:>6}{row['worst']:>9.2%}{row['median']:>9.2%}{causes}")
    return "\n".join(lines)


def check_close(found: Sequence[MeasuredObjective]) -> None:
    """Refuse an objective that is too far off.

    Raises:
        RunError: on which pairs.
    """
    far = [one for one in found if abs(one.off) > MOST_OFF]
    if far:
        worst = max(far, key=lambda one: abs(one.off))
        raise RunError(
            f"the objective of {len(far)} of {len(found)} plans is more than {MOST_OFF:.0%} off its simulation; "
            f"most of all {line(worst)}"
        )
