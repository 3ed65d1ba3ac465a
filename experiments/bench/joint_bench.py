"""Our search against what others do with the same joint problem, by one cost model in one process.

Each method has the same time limit. Ours answers with a plan laid out in full, which fits as its memory is allocated;
what others answer is made of parts of a short model, and fits by the estimate that our search begins with, which asks
for less. What it takes to price layers is no time of theirs: it is told apart.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from experiments.bench.baselines import JOINT_BASELINES, JointBaseline, LayerPricing
from experiments.bench.joint_problems import QUOTAS, JointProblem, covered
from experiments.bench.search_bench import OURS
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError, SbplanError
from strategy.layout.config import PlanConfig, Recompute
from strategy.search.search import search
from strategy.space.short_model import shortened

ALIKE = 1e-4
"""By this part steps may differ and count as equal: parts are rounded one by one."""


@dataclass(frozen=True, slots=True)
class JointResult:
    """One method on one problem.

    Attributes:
        step_s: of the objective; None where there is no answer.
        gap: to the bound that ours proves, as a share of the step.
        time_s: of the method's own.
        what: the answer in words.
        note: how it ended, if not by itself.
    """

    step_s: float | None
    gap: float | None
    time_s: float
    what: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class JointComparison:
    """All methods on one problem; ours is the first."""

    name: str
    devices: int
    parameters: int
    bound_s: float
    pricing_s: float
    results: Mapping[str, JointResult]

    def ratio(self, name: str) -> float | None:
        """The step of a method over ours: infinite, or 0, where only ours, or only theirs, has one."""
        ours, theirs = self.results[OURS].step_s, self.results[name].step_s
        if ours is None or theirs is None:
            return None if ours is theirs else (0.0 if ours is None else math.inf)
        return theirs / ours

    @property
    def worse_than(self) -> tuple[str, ...]:
        """The methods that found something faster than ours."""
        ratios = {name: self.ratio(name) for name in self.results if name != OURS}
        return tuple(name for name, ratio in ratios.items() if ratio is not None and ratio < 1 - ALIKE)

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self) | {"worse_than": list(self.worse_than)}


def compare(
    problem: JointProblem, time_limit_s: float, baselines: Mapping[str, JointBaseline] = JOINT_BASELINES
) -> JointComparison:
    """Solve a problem by every method."""
    request, begin = problem.request, time.monotonic()
    bound_s, ours, what, note = 0.0, None, "", ""
    try:
        found = search(request, simulate=simulated_step, budget=Budget.of(time_limit_s))
    except (InfeasibleError, OutOfTimeError) as error:
        note = str(error)
    else:
        claims = found.plan.claims
        bound_s, ours, what, note = claims.lower_bound_s, claims.objective_s, words(found.plan.config), claims.status
    results = {OURS: JointResult(ours, _gap(ours, bound_s), time.monotonic() - begin, what, note)}
    short = shortened(problem.model)
    if short is None:
        raise SbplanError(f"{problem.name}: too few layers to be compared")
    pricing = LayerPricing(request, short)
    for name, method in baselines.items():
        begin, before_s = time.monotonic(), pricing.spent_s
        pricing.begin(time_limit_s)
        answer = method(pricing)
        own_s = time.monotonic() - begin - (pricing.spent_s - before_s)
        step_s = None if answer is None else answer.step_ns / 1e9
        said = (
            ("", "out of time" if pricing.is_over() else "nothing fits")
            if answer is None
            else (answer.what, answer.note)
        )
        results[name] = JointResult(step_s, _gap(step_s, bound_s), own_s, *said)
    return JointComparison(problem.name, request.devices, problem.model.parameters, bound_s, pricing.spent_s, results)


def words(config: PlanConfig) -> str:
    """A configuration of ours in words."""
    laps = f" x {config.virtual_stages}" if config.virtual_stages > 1 else ""
    schedule = f" {config.schedule}" if config.pp > 1 else ""
    zero = f" ZeRO {config.zero_stage}" if config.zero_stage else ""
    again = "" if config.recompute is Recompute.NONE else f", {config.recompute} recompute"
    batches = f"{config.num_micro_batches} micro-batches of {config.micro_batch}"
    return f"dp {config.dp} tp {config.tp}{zero}{again}, pp {config.pp}{laps}{schedule}, {batches}"


def _gap(step_s: float | None, bound_s: float) -> float | None:
    return None if step_s is None else (step_s - bound_s) / step_s


def table(comparisons: Iterable[JointComparison]) -> str:
    """Step, gap and time of every method, a line per problem and method; `*` is the least step."""
    lines = []
    for one in comparisons:
        lines.append(f"{one.name} (layers priced in {one.pricing_s:.1f} s)")
        least = min((r.step_s for r in one.results.values() if r.step_s is not None), default=None)
        for name, result in one.results.items():
            step = "none" if result.step_s is None else f"{result.step_s:.4f} s{'*' if result.step_s == least else ' '}"
            gap = "" if result.gap is None else f"{result.gap:.2%}"
            said = "; ".join(text for text in (result.what, result.note) if text)
            lines.append(f"  {name:<16}{step:>12}{gap:>9}{result.time_s:>8.1f} s  {said}")
    return "\n".join(lines)


def summary(comparisons: Sequence[JointComparison]) -> dict[str, dict[str, float | None]]:
    """Method -> how often ours is better, alike and worse, mean ratio of its step to ours, and its seconds in all.

    The mean is geometric, over the problems that both have an answer to.
    """
    found: dict[str, dict[str, float | None]] = {}
    for name in comparisons[0].results if comparisons else ():
        if name == OURS:
            continue
        ratios = [ratio for one in comparisons if (ratio := one.ratio(name)) is not None]
        logs = [math.log(ratio) for ratio in ratios if 0 < ratio < math.inf]
        found[name] = {
            "ours_better": sum(ratio > 1 + ALIKE for ratio in ratios),
            "alike": sum(abs(ratio - 1) <= ALIKE for ratio in ratios),
            "ours_worse": sum(ratio < 1 - ALIKE for ratio in ratios),
            "no_answer": sum(one.results[name].step_s is None for one in comparisons),
            "mean_ratio": math.exp(sum(logs) / len(logs)) if logs else None,
            "time_s": sum(one.results[name].time_s for one in comparisons),
        }
    return found


def summary_lines(comparisons: Sequence[JointComparison], problems: Sequence[JointProblem]) -> str:
    """The summary as text, and what the problems cover."""
    counts = covered(problems)
    lines = [
        "covered: "
        + ", ".join(f"{name} {counts[name]} (at least {int(q * len(problems))})" for name, q in QUOTAS.items())
    ]
    lines.append(
        f"{'method':<18}{'ours better':>12}{'alike':>7}{'worse':>7}{'none':>6}{'mean ratio':>12}{'seconds':>9}"
    )
    for name, one in summary(comparisons).items():
        counted = f"{one['ours_better']:>12}{one['alike']:>7}{one['ours_worse']:>7}{one['no_answer']:>6}"
        mean = "" if one["mean_ratio"] is None else f"{one['mean_ratio']:.3f}"
        lines.append(f"{name:<18}{counted}{mean:>12}{one['time_s']:>9.1f}")
    lines.append(f"{OURS:<18}{sum(one.results[OURS].time_s for one in comparisons):>53.1f}")
    return "\n".join(lines)
