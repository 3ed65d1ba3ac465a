"""Published searches: the plan that a search chooses, beside a configuration that people trained with.

Both are priced by one cost model in one process. *Theirs* has the published degrees, micro-batch, schedule, recomputing
and ZeRO pinned; its layouts are searched under these pins, in which those of Megatron's rule are, so that it is at
least as good as what was run. Where that search ends without a plan in time, the layouts are Megatron's, by rule.
*Ours* is a search in which nothing is pinned and no rule-based plan stands beside. Each has the same time limit.

What was published ran. So it is a failure if it cannot be expressed, is called infeasible, or has an objective that is
off its own simulation by more than `MOST_OFF`; a plan of ours that is not found in time is one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from experiments.command.outputs import clean_stdout
from experiments.planning.config_text import degrees
from experiments.planning.prices import KeptSimulations
from experiments.published.cells import read_cells
from experiments.published.closed_form_judge import Judgement, judged
from experiments.published.configurations import Configuration
from experiments.published.fitting import TRAINING, reference
from experiments.published.scores import measured_seconds
from experiments.published.step_causes import StepCauses, difference, step_causes
from simulator.simulate import Simulation
from strategy.base.budget import Budget
from strategy.base.errors import ContradictionError, InfeasibleError, InputError, OutOfTimeError
from strategy.closed_form.calibration import FittedConstants
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, PlanConfig
from strategy.lowering.lower import model_flop
from strategy.models import family_of
from strategy.plan.plan import Plan
from strategy.search.candidate.fitted_plan import fitted_plan
from strategy.search.candidate.rule_based_plans import solved_by_rule
from strategy.search.candidate.simulated_plan import Simulate
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.request import Request

MOST_OFF = 0.03
"""What an objective may be off its simulation by, as a share of the simulation."""
JUDGE_ALLOWS = 1.02
"""So many times as long as theirs may ours be by the closed form, for it to agree."""
SEARCHED, BY_RULE = "layouts searched", "layouts by Megatron's rule"


@dataclass(frozen=True, slots=True)
class PricedPlan:
    """A plan by its figures; times are seconds of a step, rates are per second and per device."""

    config: PlanConfig
    laid_out: str
    step_s: float
    objective_s: float
    gap: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    """Of the model's products, each counted once."""
    peak_memory_bytes: int
    causes: StepCauses
    judged: Judgement

    @property
    def off(self) -> float:
        """How far the objective is off the simulation, as a share of that."""
        return self.objective_s / self.step_s - 1


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A published configuration and what a search chose instead; what is missing has a line in `failures`."""

    name: str
    source: str
    devices: int
    theirs: PricedPlan | None
    ours: PricedPlan | None
    measured_s: float | None
    failures: tuple[str, ...]

    @property
    def ratio(self) -> float | None:
        """Simulated time of ours over theirs."""
        return None if self.theirs is None or self.ours is None else self.ours.step_s / self.theirs.step_s

    @property
    def is_as_fast(self) -> bool | None:
        """Whether what was chosen is no slower than what was published."""
        return None if self.ratio is None else self.ratio <= 1

    @property
    def judged_ratio(self) -> float | None:
        """The same by the closed form, where it can say."""
        if self.theirs is None or self.ours is None:
            return None
        before, after = self.theirs.judged.seconds, self.ours.judged.seconds
        return None if before is None or after is None else after / before

    @property
    def judge_agrees(self) -> bool | None:
        """Whether the closed form has ours not much slower; None where it cannot say, or its bound on ours does not."""
        if self.judged_ratio is None or self.ours is None:
            return None
        agrees = self.judged_ratio <= JUDGE_ALLOWS
        return None if not agrees and self.ours.judged.bounds else agrees

    @property
    def why(self) -> str:
        """In what ours differs, in percent of their step; nothing where a plan is missing."""
        return "" if self.theirs is None or self.ours is None else difference(self.theirs.causes, self.ours.causes)


def compare(one: Configuration, time_limit_s: float, fitted: FittedConstants) -> PublishedComparison:
    """Price what was published, and search without any pins.

    Ours is searched first, so that nothing that is known of theirs saves it time.

    Raises:
        KeyboardInterrupt: a signal ended a search.
    """
    cluster, failures = find_cluster(one.cluster), list[str]()
    free = _request(one, cluster)

    def priced(what: str, find: Callable[[Simulate], tuple[Plan, str]]) -> PricedPlan | None:
        simulator = KeptSimulations()
        try:
            plan, laid_out = find(simulator)
        except (InputError, ContradictionError) as error:
            failures.append(f"{what}: cannot be expressed: {error}")
        except InfeasibleError as error:
            failures.append(f"{what}: called infeasible, though {one.name} ran: {error}")
        except OutOfTimeError:
            failures.append(f"{what}: no plan within {time_limit_s:g} s")
        else:
            return _priced(plan, laid_out, simulator.of(plan), one.framework, fitted)
        return None

    ours = priced("ours", lambda simulator: (_searched(free, simulator, time_limit_s), SEARCHED))
    pins = replace(one.pins, offload=one.pins.offload or Offload.NONE)  # what nobody says stayed on the device
    theirs = priced("theirs", lambda simulator: _pinned(replace(free, pins=pins), simulator, time_limit_s))
    if theirs is not None and abs(theirs.off) > MOST_OFF:
        failures.append(
            f"theirs: its objective, {theirs.objective_s:.4g} s, is {theirs.off:+.1%} off its simulation, "
            f"{theirs.step_s:.4g} s; {MOST_OFF:.0%} are allowed"
        )
    return PublishedComparison(one.name, one.source, cluster.devices, theirs, ours, _measured_s(one), tuple(failures))


def _request(one: Configuration, cluster: Cluster) -> Request:
    """The search without pins."""
    return Request(
        family_of(one.model).name,
        one.model,
        one.training,
        CostModel(cluster, {}),
        cluster.device.memory_bytes,
        incumbents=False,
    )


def _searched(request: Request, simulate: Simulate, time_limit_s: float) -> Plan:
    """The plan of a search; see `search` for what is raised."""
    with clean_stdout():
        result = search(request, simulate=simulate, budget=Budget.of(time_limit_s))
    if result.interrupted:
        raise KeyboardInterrupt
    return result.plan


def _pinned(request: Request, simulate: Simulate, time_limit_s: float) -> tuple[Plan, str]:
    """The plan of a published configuration, and how it is laid out.

    Raises:
        InputError, InfeasibleError, OutOfTimeError: as `search`.
    """
    try:
        return _searched(request, simulate, time_limit_s), SEARCHED
    except OutOfTimeError:
        budget = Budget.of(time_limit_s)
        for solved in solved_by_rule(request, list(candidates_of(request)), 1, budget):
            return fitted_plan(request, solved, simulate, rules=solved.config.axes, budget=budget), BY_RULE
        raise


def _priced(plan: Plan, laid_out: str, simulated: Simulation, framework: str, fitted: FittedConstants) -> PricedPlan:
    """What is told of a plan."""
    claims = plan.claims
    device_s = plan.ranks * claims.step_time_s
    return PricedPlan(
        config=plan.config,
        laid_out=laid_out,
        step_s=claims.step_time_s,
        objective_s=claims.objective_s,
        gap=claims.gap,
        tokens_per_s_per_gpu=plan.tokens_per_step / device_s,
        tflops_per_gpu=model_flop(plan.graph, plan.pipeline) / device_s / 1e12,
        peak_memory_bytes=max(claims.peak_memory_bytes),
        causes=step_causes(plan, simulated),
        judged=judged(plan, framework, fitted),
    )


@cache
def _measured() -> dict[str, float | None]:
    """Row -> its measured seconds."""
    return {cells["row_id"]: measured_seconds(cells) for cells in read_cells(reference(TRAINING[0]))}


def _measured_s(one: Configuration) -> float | None:
    """Measured seconds of a step, where the project has a row of it."""
    return _measured()[one.measured_row] if one.measured_row else None


def document(found: PublishedComparison) -> dict[str, object]:
    """The JSON document of one comparison; null where there is nothing."""
    return {
        **asdict(found),
        "ratio": found.ratio,
        "is_as_fast": found.is_as_fast,
        "judged_ratio": found.judged_ratio,
        "judge_agrees": found.judge_agrees,
        "why": found.why,
    }


def header() -> str:
    """The head of a table of `lines`."""
    cells = f"{'step':>10}{'TFLOP/s':>9}{'tokens/s':>10}{'gap':>8}{'ratio':>8}{'judge':>8}{'measured':>10}"
    return f"{'configuration':<20}{'devices':>8}  {'':<8}{cells}  plan"


def lines(found: PublishedComparison) -> str:
    """Theirs above ours, why they differ, and what failed. TFLOP/s and tokens/s are per device."""
    judge = "-" if found.judged_ratio is None else f"{found.judged_ratio:.3f}"
    if found.judged_ratio is not None and found.ours is not None and found.ours.judged.bounds:
        judge = f"<={judge}"
    ratio = "-" if found.ratio is None else f"{found.ratio:.3f}"
    measured = "-" if found.measured_s is None else f"{found.measured_s:.2f} s"
    name = f"{found.name:<20}{found.devices:>8}"
    text = [
        f"{name}  {'theirs':<8}{_cells(found.theirs)}{'':>8}{'':>8}{measured:>10}  {_how(found.theirs)}",
        f"{'':<28}  {'ours':<8}{_cells(found.ours)}{ratio:>8}{judge:>8}{'':>10}  {_how(found.ours)}",
    ]
    notes = [("why", found.why)] if found.why else []
    both = (("theirs", found.theirs), ("ours", found.ours))
    notes += [("judge", f"{who} read as {one.judged.read_as}") for who, one in both if one and one.judged.read_as]
    unjudged = {one.judged.why_not for one in (found.theirs, found.ours) if one is not None and one.judged.why_not}
    notes += [("judge", why) for why in sorted(unjudged)]
    notes += [("failed", failure) for failure in found.failures]
    return "\n".join([*text, *(f"{'':<28}  {kind:<8}{note}" for kind, note in notes)])


def _cells(plan: PricedPlan | None) -> str:
    if plan is None:
        return f"{'-':>10}{'-':>9}{'-':>10}{'-':>8}"
    gap = f"{100 * plan.gap:.1f} %"
    return f"{plan.step_s:>8.2f} s{plan.tflops_per_gpu:>9.1f}{plan.tokens_per_s_per_gpu:>10.0f}{gap:>8}"


def _how(plan: PricedPlan | None) -> str:
    if plan is None:
        return "-"
    zero = f", ZeRO {plan.config.zero_stage}" if plan.config.zero_stage else ""
    return f"{degrees(plan.config)}{zero}" + (f"; {plan.laid_out}" if plan.laid_out == BY_RULE else "")


def summary(found: Sequence[PublishedComparison]) -> str:
    """How many were chosen well, how often the judge agrees, and what failed."""
    both = [one for one in found if one.ratio is not None]
    known = [one for one in both if one.judge_agrees is not None]
    failed = [one.name for one in found if one.failures]
    text = (
        f"{sum(bool(one.is_as_fast) for one in both)} of {len(both)} plans no slower than what was published; "
        f"the closed form agrees on {sum(bool(one.judge_agrees) for one in known)} of the {len(known)} that it can say"
    )
    return text + (f"; failed: {', '.join(failed)}" if failed else "; none failed")
