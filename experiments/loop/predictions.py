"""Predictions that are stored before their runs: the executor's steps against the simulator's.

    profile                                  prices of acts, by the machine
    rounds 1, 3, 5 ...    all plans train    the calibration is corrected by all odd rounds so far
    rounds 2, 4, 6 ...    all plans train    scored by predictions-2.json, which was stored and hashed before

In a round all plans take turns on the same ranks, some steps each, several times over, in a job of its own; steps in
which a rank waits for a core do not count where there are others. Plans are enumerated, not
chosen: every family of signatures with every number of micro-batches, pipelines under several schedules. The one that
is predicted fastest before any even round stands for what a search would choose.

With plans held out, prices are fitted to two plans of each family, the others are scored, which no fit has seen.
Where prices begin so many times off, the first predictions are, too: what refinement makes of them is what rounds show.

No prediction from odd rounds is closer to the even ones than the machine is to itself: the *noise floor* is the error
that each plan's own steps of the odd rounds would have as its prediction.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean, median

from experiments.loop.bootstrap import half_widths_of
from experiments.loop.contenders import Contender, Progress, by_rule, profiled, request_on, timed
from experiments.loop.refinement import Observation, predict_s, refine_by
from experiments.loop.testbed import Testbed
from strategy.base.errors import InputError
from strategy.base.files import write_atomic
from strategy.cost.calibrate import Calibration, scale
from strategy.layout.schedule import Schedule
from strategy.plan.plan import Plan, config_document
from strategy.space.request import Request

PIPELINES = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)
FAMILIES = ("data", "tensor", "mixed", "pipeline")
"""Of signatures."""


@dataclass(frozen=True, slots=True)
class EnumeratedPlan:
    """One plan, and the family that its signatures are of."""

    name: str
    family: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class StoredPrediction:
    """The file that was written before a round, its hash, and the load of the machine when the round began."""

    round: int
    file: str
    sha256: str
    load: float


@dataclass(frozen=True, slots=True)
class ScoredPlan:
    """A plan's step: as predicted before each even round, and counted in it.

    `repeated_s` is the plan's own median over the odd rounds until then, `waited` the share of a step that a rank
    waited for a core in each even round.
    """

    plan: EnumeratedPlan
    predicted_s: tuple[float, ...]
    repeated_s: tuple[float, ...]
    samples_s: tuple[tuple[float, ...], ...]
    waited: tuple[float, ...]

    @property
    def measured_s(self) -> float:
        """Median of the counted steps."""
        return median(step for steps in self.samples_s for step in steps)

    @property
    def error(self) -> float:
        """How far off predictions were: of predicted over measured, round by round, the median."""
        return self._error_of(self.predicted_s)

    @property
    def noise(self) -> float:
        """The same, of the plan's own steps of the odd rounds as its predictions."""
        return self._error_of(self.repeated_s)

    def _error_of(self, before_s: Sequence[float]) -> float:
        ratios = [before / median(steps) for before, steps in zip(before_s, self.samples_s, strict=True)]
        return abs(median(ratios) - 1)


@dataclass(frozen=True)
class ScoredPlans:
    """All plans, and what was stored."""

    plans: tuple[ScoredPlan, ...]
    stored: tuple[StoredPrediction, ...]

    @property
    def chosen(self) -> int:
        """The plan that was predicted fastest before the first round that counts."""
        return min(range(len(self.plans)), key=lambda at: self.plans[at].predicted_s[0])


def run_predictions(
    testbed: Testbed,
    folder: Path,
    *,
    rounds: int,
    blocks: int,
    steps: int,
    micro_batches: Sequence[int],
    progress: Progress,
    off: float = 1.0,
    held_out: bool = False,
) -> ScoredPlans:
    """Predict and measure on some ranks; all files stay in `folder`.

    Args:
        testbed: the ranks.
        folder: for everything that is made.
        rounds: two for each prediction.
        blocks: turns of a plan in a round: the machine's pace wanders, so that one turn is of one moment.
        steps: of a plan in a turn.
        micro_batches: numbers of them that plans have.
        progress: is told what goes on.
        off: the measured prices of acts are multiplied by this before anything is predicted.
        held_out: score the plans alone that no fit has seen.

    Raises:
        InputError: the number of rounds is odd.
        RunError: a job of ranks failed.
    """
    if rounds % 2:
        raise InputError("rounds are fitted and scored in turn", where="rounds", got=rounds, expected="an even number")
    progress(f"measuring this machine on {testbed.ranks} ranks")
    cluster, measured = profiled(testbed, folder)
    base = scale(measured, off)
    plans = list(enumerated(request_on(cluster, base.cost_model(cluster)), micro_batches))
    seen = {one.name for one in ends(plans)} if held_out else {one.name for one in plans}
    counted = [one for one in plans if one.name not in seen] if held_out else plans
    fitted: list[list[Contender]] = []
    scored: list[list[Contender]] = []
    predicted: list[Mapping[str, float]] = []
    stored: list[StoredPrediction] = []
    for number in range(1, rounds + 1):
        here = folder / f"round-{number}"
        here.mkdir()
        counts = number % 2 == 0
        if counts:
            calibration = refine_by(base, pooled([[one for one in ran if one.name in seen] for ran in fitted]), cluster)
            predicted.append({one.name: predict_s(one.plan, calibration) for one in counted})
            stored.append(store(counted, predicted[-1], calibration, number, folder))
            progress(f"round {number}: predictions stored, SHA-256 {stored[-1].sha256}")
        contenders = [Contender(one.name, one.plan) for one in (counted if counts else plans)]
        (scored if counts else fitted).append(
            timed(contenders, testbed, here, blocks=blocks, steps=steps, progress=progress)
        )
    names = {one.name for one in counted}
    own = [[one for one in ran if one.name in names] for ran in fitted]
    return ScoredPlans(tuple(_scores(counted, predicted, own, scored)), tuple(stored))


def ends(plans: Sequence[EnumeratedPlan]) -> Iterator[EnumeratedPlan]:
    """The first and the last plan of every family: with fewest micro-batches, and with most."""
    for family in FAMILIES:
        of_family = [one for one in plans if one.family == family]
        yield from (*of_family[:1], *of_family[1:][-1:])


def enumerated(request: Request, micro_batches: Sequence[int]) -> Iterator[EnumeratedPlan]:
    """Every form of plan with every number of micro-batches that the batch divides into; what two would share, once."""
    seen = set[str]()
    for form in forms(request.devices):
        for count in micro_batches:
            if request.training.global_batch % (form.degrees[0] * count):
                continue
            plan = by_rule(request, form.degrees, count, form.rules, form.schedule)
            if plan.plan_hash not in seen:
                seen.add(plan.plan_hash)
                yield EnumeratedPlan(f"{form.name}-{count}", form.family, plan)


@dataclass(frozen=True, slots=True)
class PlanForm:
    """A family of signatures, with degrees (data, tensor, pipeline), a rule for each axis, and a schedule."""

    name: str
    family: str
    degrees: tuple[int, int, int]
    rules: tuple[str, str] = ("data", "tensor")
    schedule: Schedule = Schedule.ONE_F_ONE_B


def forms(ranks: int) -> Iterator[PlanForm]:
    """Those of so many ranks; on four or more, two axes at once, too."""
    yield PlanForm("data", "data", (ranks, 1, 1))
    yield PlanForm("tensor", "tensor", (1, ranks, 1))
    yield PlanForm("mixed", "mixed", (ranks, 1, 1), ("mixed", "tensor"))
    for schedule in PIPELINES:
        yield PlanForm(f"pipeline-{schedule}", "pipeline", (1, 1, ranks), schedule=schedule)
    if ranks >= 4 and ranks % 2 == 0:
        yield PlanForm("data-tensor", "mixed", (ranks // 2, 2, 1))
        yield PlanForm("data-pipeline", "pipeline", (ranks // 2, 1, 2))


def pooled(rounds: Sequence[Sequence[Contender]]) -> list[Observation]:
    """What all rounds say of each plan."""
    return [
        Observation(
            of_plan[0].plan,
            [row for one in of_plan for row in one.rows],
            median(one.overhead_s for one in of_plan),
            median(step for one in of_plan for step in one.undisturbed_s),
        )
        for of_plan in zip(*rounds, strict=True)
    ]


def store(
    plans: Sequence[EnumeratedPlan],
    predicted_s: Mapping[str, float],
    calibration: Calibration,
    number: int,
    folder: Path,
) -> StoredPrediction:
    """Write what is predicted of a round that has not begun."""
    content = {
        "round": number,
        "act_overhead_s": calibration.act_overhead_s,
        "step_time_s": {one.plan.plan_hash: predicted_s[one.name] for one in plans},
    }
    path = folder / f"predictions-{number}.json"
    write_atomic(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    return StoredPrediction(number, path.name, hashlib.sha256(path.read_bytes()).hexdigest(), os.getloadavg()[0])


def _scores(
    plans: Sequence[EnumeratedPlan],
    predicted_s: Sequence[Mapping[str, float]],
    odd: Sequence[Sequence[Contender]],
    even: Sequence[Sequence[Contender]],
) -> Iterator[ScoredPlan]:
    for at, one in enumerate(plans):
        own = [found[at].undisturbed_s for found in odd]
        repeated = (median(chain.from_iterable(own[:until])) for until in range(1, len(even) + 1))
        yield ScoredPlan(
            one,
            tuple(found[one.name] for found in predicted_s),
            tuple(repeated),
            tuple(found[at].undisturbed_s for found in even),
            tuple(found[at].waited for found in even),
        )


def figures(scores: Sequence[ScoredPlan], chosen: int) -> dict[str, float]:
    """Mean and worst error and noise, how much slower the chosen plan is than the fastest, the slowest over that.

    `error_before` is the mean error of the prices that refinement began with.
    """
    errors, noise = [one.error for one in scores], [one.noise for one in scores]
    measured = [one.measured_s for one in scores]
    return {
        "error_mean": fmean(errors),
        "error_worst": max(errors),
        "noise_mean": fmean(noise),
        "noise_worst": max(noise),
        "regret": measured[chosen] / min(measured) - 1,
        "error_before": fmean(abs(one.plan.plan.claims.step_time_s / one.measured_s - 1) for one in scores),
        "slowest_over_fastest": max(measured) / min(measured),
    }


def half_widths(scored: ScoredPlans) -> dict[str, float]:
    """Half of the central 95 % of each figure when rounds, and steps of each, are drawn anew."""
    rounds = range(len(scored.stored))

    def draw(rng: random.Random) -> dict[str, float]:
        drawn = rng.choices(rounds, k=len(rounds))
        again = [
            replace(
                one,
                predicted_s=tuple(one.predicted_s[at] for at in drawn),
                repeated_s=tuple(one.repeated_s[at] for at in drawn),
                samples_s=tuple(tuple(rng.choices(one.samples_s[at], k=len(one.samples_s[at]))) for at in drawn),
            )
            for one in scored.plans
        ]
        return figures(again, scored.chosen)

    return half_widths_of(draw)


def document(scored: ScoredPlans) -> dict[str, object]:
    """What the run keeps: figures, raw samples, and what was stored before them."""
    scores = scored.plans
    return {
        "plans": [
            {
                "name": one.plan.name,
                "family": one.plan.family,
                "config": config_document(one.plan.plan.config),
                "plan_hash": one.plan.plan.plan_hash,
                "profiled_s": one.plan.plan.claims.step_time_s,
                "predicted_s": list(one.predicted_s),
                "repeated_s": list(one.repeated_s),
                "measured_s": one.measured_s,
                "samples_s": [list(steps) for steps in one.samples_s],
                "waited": list(one.waited),
                "error": one.error,
                "noise": one.noise,
            }
            for one in scores
        ],
        "families": {family: sum(one.plan.family == family for one in scores) for family in FAMILIES},
        "chosen": scores[scored.chosen].plan.name,
        **figures(scores, scored.chosen),
        "half_width": half_widths(scored),
        "waited": median(share for one in scores for share in one.waited),
        "stored": [
            {"round": one.round, "file": one.file, "sha256": one.sha256, "load": one.load} for one in scored.stored
        ],
    }
