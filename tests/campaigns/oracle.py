"""The whole search against every plan listed and priced: tiny models on at most four devices.

Each case opens some knobs and pins the others; layouts of random values are pinned until few enough points are left.
All points (device mesh x micro-batch x schedule x what saves memory x signatures) are listed and priced by
`tests.support` (`listed_plans`, `priced_points`), which share no enumeration, bound or pruning with the search. Held
against that:

    gap 0          the answer's objective is the least of all points that fit, and its layout has it; plans by rule,
                   which need not be among the points, do not stand beside it
    default gap    it is within one percent of that, or better by rule
    bound          no bound lies above the least; optimal is what has no gap
    certificate    the certificate of the bound, where pins allow one, is accepted by a verifier that knows no search
    saving         without pinned layouts, memory aside, no point that computes again or shares out takes less than the
                   best that is alike otherwise and does neither, as the search supposes
    simulation     the answer takes no longer than `SLOWER` times the fastest of the `BEST` points of least objective;
                   the bound of the simulated step lies above no simulated time of the plan

What fits is counted by lifetimes, as the search counts it. Where gaps between blocks make none of the best points fit
in truth, nothing is asked of the answer but an honest bound.

`exercised` names the knobs that decide: with the knob at its default (one rank, one micro-batch, 1F1B, one lap, experts
that nobody shares out, axes in the order of their names, nothing that saves memory, every op under its first signature,
which splits least) the least objective would be greater, or nothing would fit. Sharing out state is a choice of layouts
that needs no stage of ZeRO: `zero` decides where the least has shared out what others hold whole. OneFlow's schedule is
a pin; contexts are nothing that tiny models have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.planning.prices import simulated_step
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.base.errors import CertificateError, InfeasibleError
from strategy.base.status import Status
from strategy.graph.graph import Op
from strategy.graph.signature import Signature
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.plan.plan import Plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.program.program import Program
from strategy.sbp.sbp import B
from strategy.search.search import search
from strategy.space.request import Request
from tests.campaigns.outcome import Outcome, survived
from tests.support.listed_plans import candidates, listed
from tests.support.priced_points import IMPOSSIBLE, Points, all_points, priced
from tests.support.random_requests import ROOMY, Case, random_case

MOST_POINTS, MOST_IN_GROUPS = 100_000, 2_000_000
"""Of a case; more where there are groups of ZeRO, for two axes leave more layouts to what has none of their samples."""
EXACT = 1e-9
"""Part of a time that floats may err by."""
DEFAULT_GAP = 0.01
SLOWER = 1.03
BEST = 50
"""Points that are simulated."""
TIES = 200
"""Best points that are lowered to see whether one fits."""
SUMMED = 3
"""Points of a candidate that are priced as whole layouts, too."""
BUDGET_S = 300.0
QUOTAS = {
    **dict.fromkeys(("dp", "tp", "pp", "micro-batch", "signatures"), 0.05),
    **dict.fromkeys(("schedule", "recompute", "saving", "tight limit", "half precision"), 0.05),
    **dict.fromkeys(("zero", "laps", "ep", "order", "offload"), 0.01),
    **dict.fromkeys(("overlaps", "two nodes", "followed samples", "groups"), 0.0),
    **dict.fromkeys(("better by rule", "proved, gap 0.0", "proved, gap 0.01"), 0.0),
}


def run(cases: int, seed: int, *, best: int = BEST) -> Outcome:
    """Check `cases` cases, `best` points of each by simulation; those of no points or too many are passed over."""
    outcome = Outcome(QUOTAS)
    number = seed
    while outcome.cases < cases:
        case = random_case(number)
        if not 0 < case.points <= (MOST_IN_GROUPS if "groups" in case.knobs else MOST_POINTS):
            outcome.coverage["passed over: too many points" if case.points else "passed over: no points"] += 1
        else:
            exercised: list[str] = []
            outcome.add(f"case {number}", survived(check(case, number, exercised, best)), exercised)
        number += 1
    return outcome


@dataclass(frozen=True, slots=True)
class Found:
    """One point: its candidate, its place there, its objective and its lifetimes' peak."""

    points: Points
    at: int
    objective_ns: int
    peak_nbytes: int

    @property
    def config(self) -> PlanConfig:
        """Its candidate."""
        return self.points.listed.config


def check(case: Case, seed: int, exercised: list[str], best: int = BEST) -> Iterator[str]:
    """Everything that the search and the list disagree on; says in `exercised` what the case was good for.

    Args:
        case: what is searched for.
        seed: of the limit, and of what is checked twice.
        exercised: is added to.
        best: points that are simulated.
    """
    rng = random.Random(seed)
    spaces = [
        all_points(space) for space in (listed(case.request, c) for c in candidates(case.request)) if space.points
    ]
    for space in spaces:
        yield from space.check(rng, SUMMED)
    if not case.request.pins.layouts:
        yield from _check_saving(spaces, exercised)
    tight = rng.random() < (0.75 if {"zero", "recompute", "offload"} & case.knobs else 0.4)
    request = _limited(case.request, spaces, rng) if tight else case.request
    exercised += _kinds(request)
    least = _best(spaces, request.memory_limit_bytes, 1)
    if not least:
        exercised.append("no point")
        return
    exercised += _deciding(spaces, request, least[0])
    yield from _check_optimum(replace(request, gap=0.0, incumbents=False), spaces, least[0], exercised)
    yield from _check_optimum(replace(request, gap=DEFAULT_GAP), spaces, least[0], exercised)
    yield from _check_simulated(replace(request, gap=DEFAULT_GAP), spaces, best)


def _check_saving(spaces: Sequence[Points], exercised: list[str]) -> Iterator[str]:
    """Whether what saves least memory has the least objective of what is alike otherwise.

    What is computed again need not wait on the host: of what is, less may travel there.
    """
    alike: dict[PlanConfig, list[Found]] = {}
    for space in spaces:
        config = space.listed.config
        stage = config.zero_stage if config.zero_group else 0
        key = replace(config, recompute=Recompute.NONE, zero_stage=stage, offload=Offload.NONE)
        alike.setdefault(key, []).extend(_best([space], ROOMY, 1))
    for one, *others in alike.values():
        if others:
            exercised.append("saving")
        for other in others:
            travels = one.config.offload.of_activations != other.config.offload.of_activations
            if travels and one.config.recompute is not Recompute.NONE:
                continue
            if other.objective_ns < one.objective_ns:
                yield f"{_told(other)}, less than {_told(one)}"


def _limited(request: Request, spaces: Sequence[Points], rng: random.Random) -> Request:
    """With a limit that the best points do not fit, but some do, if there is one."""
    best = _best(spaces, ROOMY, TIES)
    peaks = [space.peak_nbytes[space.objective_ns < IMPOSSIBLE] for space in spaces]
    lowest = min((int(some.min()) for some in peaks if some.size), default=0)
    roomy = min((one.peak_nbytes for one in best if one.objective_ns == best[0].objective_ns), default=0)
    return replace(request, memory_limit_bytes=rng.randrange(lowest, roomy)) if lowest < roomy else request


def _kinds(request: Request) -> Iterator[str]:
    """What is awkward about a request."""
    if request.memory_limit_bytes < ROOMY:
        yield "tight limit"
    if request.training.precision.half is not None:
        yield "half precision"
    if request.cost.cluster.overlaps:
        yield "overlaps"
    if request.cost.cluster.nodes > 1:
        yield "two nodes"
    if not request.pins.layouts and request.pins.dp != 1:
        yield "followed samples"


def _best(spaces: Sequence[Points], limit: int, count: int) -> list[Found]:
    """The points of least objective that fit, least first."""
    found = []
    for space in spaces:
        objective = np.where(space.peak_nbytes <= limit, space.objective_ns, IMPOSSIBLE)
        leading = [int(at) for at in np.argsort(objective, kind="stable")[:count] if objective[at] < IMPOSSIBLE]
        found += [Found(space, at, int(objective[at]), int(space.peak_nbytes[at])) for at in leading]
    return sorted(found, key=lambda one: one.objective_ns)[:count]


def _deciding(spaces: Sequence[Points], request: Request, least: Found) -> Iterator[str]:
    """The knobs without which the least objective would be greater."""
    limit = request.memory_limit_bytes
    defaults: dict[str, Callable[[PlanConfig], bool]] = {
        "dp": lambda config: config.dp == 1,
        "tp": lambda config: config.tp == 1,
        "pp": lambda config: config.pp == 1,
        "micro-batch": lambda config: config.num_micro_batches == 1,
        "schedule": lambda config: config.schedule is (request.pins.schedule or Schedule.ONE_F_ONE_B),
        "laps": lambda config: config.virtual_stages == 1,
        "ep": lambda config: config.ep == 1,
        "groups": lambda config: not config.zero_group,
        "order": lambda config: not config.strides,
        "offload": lambda config: config.offload is Offload.NONE,
        "recompute": lambda config: config.recompute is (request.pins.recompute or Recompute.NONE),
    }
    for knob, is_default in defaults.items():
        left = _best([space for space in spaces if is_default(space.listed.config)], limit, 1)
        if not left or left[0].objective_ns > least.objective_ns:
            yield knob
    if request.pins.zero_stage is None and least.config.dp > 1:
        whole = [space.among(_is_whole) for space in spaces if not space.listed.config.zero_stage]
        left = _best(whole, limit, 1)
        if not left or left[0].objective_ns > least.objective_ns:
            yield "zero"
    first = [space.objective_ns[0] for space in spaces if space.peak_nbytes[0] <= limit]
    if min(first, default=IMPOSSIBLE) > least.objective_ns:
        yield "signatures"


def _is_whole(op: Op, signature: Signature) -> bool:
    """Whether every rank along the data axis holds all that an op updates."""
    return all(layout[0] == B for layout in signature.updates)


def _answer(request: Request, simulated: int) -> Plan | None:
    """The search's answer; None if it finds that nothing fits."""
    try:
        return search(request, simulate=simulated_step, budget=Budget.of(BUDGET_S), simulated=simulated).plan
    except InfeasibleError:
        return None


def _check_optimum(request: Request, spaces: Sequence[Points], least: Found, exercised: list[str]) -> Iterator[str]:
    limit, gap, least_s = request.memory_limit_bytes, request.gap, least.objective_ns / 1e9
    plan = _answer(request, 1)
    if plan is None:
        if _fits(request, spaces, least):
            yield f"gap {gap}: nothing fits {limit} bytes, but {_told(least)}"
        return
    claims = plan.claims
    if (claims.status == Status.OPTIMAL) != (claims.gap == 0):
        yield f"gap {gap}: {claims.status} with a gap of {claims.gap}"
    if claims.status == Status.LIMIT:
        yield f"gap {gap}: no answer in {BUDGET_S} s"
    objective_ns, peak = priced(listed(request, plan.config), plan.layout)
    if not _close(objective_ns / 1e9, claims.objective_s):
        yield f"gap {gap}: the objective is {claims.objective_s} to the search, and {objective_ns} ns by its layout"
    if claims.lower_bound_s > least_s * (1 + EXACT):
        yield f"gap {gap}: the bound {claims.lower_bound_s} lies above {_told(least)}"
    found = f"gap {gap}: {claims.status} {claims.objective_s} of {_short(plan.config)}"
    is_worse = claims.objective_s > least_s * (1 + gap) * (1 + EXACT)
    if is_worse and (claims.status == Status.OPTIMAL or _fits(request, spaces, least)):
        yield f"{found}, but {_told(least)}"
    if claims.objective_s < least_s * (1 - EXACT) and peak <= limit:
        if not request.incumbents:
            yield f"{found} is better than {_told(least)}"
        exercised.append("better by rule")
    if claims.status == Status.OPTIMAL:
        exercised.append(f"proved, gap {gap}")
    yield from _check_certificate(plan, exercised)


def _check_certificate(plan: Plan, exercised: list[str]) -> Iterator[str]:
    try:
        exercised += [] if replayed_bound(plan) is None else ["certificate"]
    except CertificateError as error:
        yield f"the bound {plan.claims.lower_bound_s} of {_short(plan.config)} is refused: {error}"


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= EXACT * max(one, other)


def _fits(request: Request, spaces: Sequence[Points], least: Found) -> bool:
    """Whether a best point fits as its blocks are laid out."""
    ties = [one for one in _best(spaces, request.memory_limit_bytes, TIES) if one.objective_ns == least.objective_ns]
    return any(max(memory_nbytes(_lowered(one))) <= request.memory_limit_bytes for one in ties)


def _lowered(one: Found) -> Program:
    space = one.points.listed
    return lower_priced(Priced(space.graph, one.points.layout(one.at), space.pipeline, space.cost))


def _check_simulated(request: Request, spaces: Sequence[Points], best: int) -> Iterator[str]:
    programs = map(_lowered, _best(spaces, request.memory_limit_bytes, best))
    fitting = [program for program in programs if max(memory_nbytes(program)) <= request.memory_limit_bytes]
    steps = [simulated_step(program).step_time_s for program in fitting]
    plan = _answer(request, 6)
    if plan is None or not steps:
        return
    if plan.claims.step_time_s > SLOWER * min(steps):
        yield f"simulated: {plan.claims.step_time_s} s of {_short(plan.config)}, but {min(steps)} s can be had"
    program = lower_priced(plan.priced)
    times = [simulate(program, steps=count).step_time_s for count in (1, 2, 3)]
    if plan.claims.simulated_lower_bound_s > min(times) * (1 + EXACT):
        yield f"simulated: bound {plan.claims.simulated_lower_bound_s} s, but steps take {times} s"


def _told(found: Found) -> str:
    return f"{found.objective_ns} ns of {_short(found.config)} at point {found.at} are the least"


def _short(config: PlanConfig) -> str:
    """Degrees and what saves memory."""
    degrees = f"dp {config.dp} tp {config.tp} pp {config.pp} m {config.num_micro_batches} {config.schedule}"
    return f"({degrees} zero {config.zero_stage} recompute {config.recompute} offload {config.offload})"
