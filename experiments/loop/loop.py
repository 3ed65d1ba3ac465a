"""Loop: search, run, refine, search again, on this machine.

The choice is fixed before anything is timed. Then the chosen plan and its competitors train in interleaved blocks, the
calibration is refined by what was measured, and every plan is predicted once more by a calibration that was refined
without its own run: that error says what the refinement is worth for plans that nobody has run yet.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median

from experiments.loop.bootstrap import half_widths_of
from experiments.loop.contenders import Contender, Progress, by_rule, profiled, request_on, timed
from experiments.loop.refinement import Observation, predict_s, refine_by
from experiments.loop.testbed import Testbed
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.cost.calibrate import Calibration, write_calibration
from strategy.hardware.cluster import Cluster
from strategy.layout.config import PlanConfig
from strategy.plan.plan import config_document, write_plan
from strategy.search.search import search
from strategy.search.search_result import SearchResult
from strategy.space.candidates import space_log10
from strategy.space.request import Request

SEARCH_S = 55.0
"""Time for a search."""


@dataclass(frozen=True)
class Outcome:
    """Everything that the demo shows."""

    contenders: tuple[Contender, ...]
    chosen: str
    first: SearchResult
    again: SearchResult
    calibration: Calibration
    plans_log10: float
    half_width: Mapping[str, float] = field(default_factory=dict)


def run_loop(ranks: int, folder: Path, *, blocks: int, steps: int, progress: Progress) -> Outcome:
    """The main job, end to end; everything that it makes is kept in `folder`.

    Raises:
        RunError: a job of ranks failed.
    """
    progress(f"measuring this machine on {ranks} ranks")
    testbed = Testbed(ranks)
    cluster, base = profiled(testbed, folder)
    request = request_on(cluster, base.cost_model(cluster))
    plans_log10 = space_log10(request)
    progress(f"searching 10^{plans_log10:.0f} plans")
    first = search(request, simulate=simulated_step, budget=Budget.of(SEARCH_S))
    contenders = _contenders(request, first)
    chosen = next(c.name for c in contenders if c.plan.layout == first.plan.layout)
    progress(f"chosen before any run: {chosen} {describe(first.plan.config)}")
    contenders = timed(contenders, testbed, folder, blocks=blocks, steps=steps, progress=progress)
    progress("refining the calibration")
    contenders = [replace(c, refined_s=_predict_unseen(c, contenders, base, cluster)) for c in contenders]
    refined = _refined(contenders, base, cluster)
    write_calibration(refined, folder / "refined.json")
    progress("searching again")
    again = search(
        request_on(cluster, refined.cost_model(cluster)), simulate=simulated_step, budget=Budget.of(SEARCH_S)
    )
    write_plan(again.plan, folder / "plan.json")
    half_width = half_widths(contenders, chosen)
    return Outcome(tuple(contenders), chosen, first, again, refined, plans_log10, half_width)


def _contenders(request: Request, first: SearchResult) -> list[Contender]:
    """The chosen plan, and the plans that people would write by hand: each with its best number of micro-batches."""
    ranks = request.devices
    forms: dict[str, tuple[tuple[int, int, int], tuple[str, str]]] = {
        "data": ((ranks, 1, 1), ("data", "tensor")),
        "tensor": ((1, ranks, 1), ("data", "tensor")),
        "mixed": ((ranks, 1, 1), ("mixed", "tensor")),
    }
    if ranks % 2 == 0:
        forms["pipeline"] = ((ranks // 2, 1, 2), ("data", "tensor"))
    elif ranks <= request.model.layers:
        forms["pipeline"] = ((1, 1, ranks), ("data", "tensor"))
    found = [Contender("searched", first.plan)]
    for name, (degrees, rules) in forms.items():
        counts = [count for count in (1, 2, 4) if request.training.global_batch % (degrees[0] * count) == 0]
        plans = [by_rule(request, degrees, count, rules) for count in counts]
        best = min(plans, key=lambda plan: plan.claims.step_time_s)
        if best.layout == first.plan.layout and best.config == first.plan.config:
            found[0] = replace(found[0], name=name)
        else:
            found.append(Contender(name, best))
    return found


def _refined(contenders: Sequence[Contender], base: Calibration, cluster: Cluster) -> Calibration:
    return refine_by(base, [Observation(c.plan, c.rows, c.overhead_s, c.measured_s) for c in contenders], cluster)


def _predict_unseen(
    contender: Contender, all_of_them: Sequence[Contender], base: Calibration, cluster: Cluster
) -> float:
    """The plan's step time by a calibration refined without its run."""
    others = [other for other in all_of_them if other.name != contender.name]
    return predict_s(contender.plan, _refined(others, base, cluster))


def errors(contenders: Sequence[Contender], measured: Sequence[float]) -> tuple[float, float]:
    """Mean relative errors before and after refinement, against the given times."""
    pairs = list(zip(contenders, measured, strict=True))
    before = mean(abs(c.predicted_s - m) / m for c, m in pairs)
    return before, mean(abs(c.refined_s - m) / m for c, m in pairs)


def regret(contenders: Sequence[Contender], chosen: str, measured: Sequence[float]) -> float:
    """How much slower the chosen plan is than the best one."""
    names = [contender.name for contender in contenders]
    return measured[names.index(chosen)] / min(measured) - 1


def half_widths(contenders: Sequence[Contender], chosen: str) -> dict[str, float]:
    """Half of the central 95 % of each figure when the samples are drawn anew."""

    def draw(rng: random.Random) -> dict[str, float]:
        measured = [median(rng.choices(c.samples_s, k=len(c.samples_s))) for c in contenders]
        before, after = errors(contenders, measured)
        found = regret(contenders, chosen, measured)
        return {"error_before_refine": before, "error_after_refine": after, "regret": found}

    return half_widths_of(draw)


def loss_difference(contenders: Sequence[Contender]) -> float:
    """The largest difference of losses between two plans at one step."""
    steps = zip(*(contender.losses for contender in contenders), strict=True)
    return max((max(losses) - min(losses) for losses in steps), default=0.0)


def describe(config: PlanConfig) -> str:
    """A configuration in one line."""
    return f"(data {config.dp}, tensor {config.tp}, pipeline {config.pp}, micro-batches {config.num_micro_batches})"


def document(outcome: Outcome) -> dict[str, object]:
    """What `sbplan demo --json` prints."""
    measured = [contender.measured_s for contender in outcome.contenders]
    before, after = errors(outcome.contenders, measured)
    return {
        "plans": [_plan_document(contender) for contender in outcome.contenders],
        "chosen": outcome.chosen,
        "regret": regret(outcome.contenders, outcome.chosen, measured),
        "error_before_refine": before,
        "error_after_refine": after,
        "half_width": dict(outcome.half_width),
        "loss_first": outcome.contenders[0].losses[0],
        "loss_last": outcome.contenders[0].losses[-1],
        "max_loss_difference": loss_difference(outcome.contenders),
        "candidates": outcome.first.num_candidates,
        "plans_log10": outcome.plans_log10,
        "search_status": str(outcome.first.status),
        "gap": outcome.first.plan.claims.gap,
        "chosen_after_refine": config_document(outcome.again.plan.config),
    }


def _plan_document(contender: Contender) -> dict[str, object]:
    return {
        "name": contender.name,
        "config": config_document(contender.plan.config),
        "predicted_s": contender.predicted_s,
        "measured_s": contender.measured_s,
        "refined_s": contender.refined_s,
        "error_before_refine": abs(contender.predicted_s - contender.measured_s) / contender.measured_s,
        "error": abs(contender.refined_s - contender.measured_s) / contender.measured_s,
        "samples_s": list(contender.samples_s),
        "losses": list(contender.losses),
        "pids": list(contender.pids),
        "plan_hash": contender.plan.plan_hash,
    }
