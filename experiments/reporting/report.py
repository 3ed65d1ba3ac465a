"""Report: what is said of a plan, or of a run of it, as JSON values.

`web_page.py` makes the page of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from experiments.explanation.binding import binding
from experiments.explanation.certainty import Certainty, Unknown, best_document, best_text
from experiments.explanation.simulated import SimulatedPlan
from experiments.explanation.step_interval import StepInterval
from experiments.explanation.time_by_cause import GROUPS, WORKING, causes_of_actors
from experiments.reporting.layer_layouts import layer_layouts
from experiments.reporting.memory_map import memory_map
from experiments.reporting.others import OtherPlan
from experiments.reporting.timeline_rows import MOST_RANKS, timeline_rows
from simulator.acts import acts_of
from strategy.plan.plan import config_document
from strategy.plan.plan import document as plan_document
from strategy.program.timeline import Clock, Timeline, from_zero, step_ends_ns, step_time_ns

MEANINGS: Mapping[str, str] = {
    "forward": "forward pass",
    "recompute": "activations computed again",
    "backward": "backward pass",
    "update": "parameter updates",
    "collectives": "collectives inside layers (tensor, context and expert axes)",
    "transfers": "transfers between pipeline stages",
    "gathers": "gathers of parameters",
    "exchange": "exchange of gradients",
    "local": "copies, slices and loading",
    "imbalance": "waiting for the busiest rank",
    "bubble": "waiting in the schedule, the busiest rank too (pipeline bubble)",
}
"""Cause -> what people call it."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A run of a plan: where it is, and its timeline."""

    name: str
    timeline: Timeline


def report_document(
    name: str,
    one: SimulatedPlan,
    *,
    simulation: Mapping[str, object],
    verification: Mapping[str, object],
    bound: str,
    others: Sequence[OtherPlan] | None,
    certainty: Certainty | Unknown,
    interval: StepInterval | None,
    run: TimedRun | None,
) -> dict[str, Any]:
    """All that a page shows.

    Args:
        name: of the plan's file or the run's folder.
        one: the plan.
        simulation: what `sbplan simulate --json` says of it.
        verification: what `sbplan verify --json` says of it.
        bound: what is known of its bound, in words.
        others: the plans next to it; None if they were not looked for.
        certainty: how sure it is that it is the fastest of these, or why that is not known.
        interval: of its step, where that is known.
        run: of the plan, if there is one.
    """
    plan, claims = one.plan, one.plan.claims
    inputs = plan_document(plan)
    binds = binding(one)
    found = {
        "name": name,
        "model": plan.model_name,
        "parameters": plan.model.parameters,
        "cluster": plan.cluster.name,
        "devices": plan.ranks,
        "device": plan.cluster.device.name,
        "precision": str(plan.training.precision),
        "simulation": {key: value for key, value in simulation.items() if key != "simulate_time_s"},
        "verification": dict(verification),
        "claims": {
            "status": claims.status,
            "objective_s": claims.objective_s,
            "lower_bound_s": claims.lower_bound_s,
            "gap": claims.gap,
            "step_time_s": claims.step_time_s,
            "memory_limit_bytes": claims.memory_limit_bytes,
        },
        "bound": bound,
        "interval": None if interval is None else asdict(interval),
        "causes": {
            "groups": {group: list(causes) for group, causes in GROUPS.items()},
            "meanings": dict(MEANINGS),
            "seconds": dict(one.causes.by_cause_s),
        },
        "binding": asdict(binds),
        "binding_lines": binds.lines(),
        "memory": [asdict(rank) for rank in memory_map(one)],
        "timelines": _timelines(one, run),
        "layouts": {
            "axes": list(plan.config.axes),
            "mesh": list(plan.config.mesh),
            "layers": [asdict(layers) for layers in layer_layouts(plan)],
        },
        "config": config_document(plan.config),
        "training": inputs["training"],
        "dimensions": inputs["model"],
        "others": None if others is None else [other.document() for other in others],
        **best_document(certainty),
        "best_line": best_text(certainty) if isinstance(certainty, Unknown) else f"This plan is {certainty}.",
    }
    if run is not None:
        found["run"] = {"name": run.name, "step_time_s": step_time_ns(run.timeline) / 1e9, **_interval(run.timeline)}
    return found


def _interval(timeline: Timeline) -> dict[str, object]:
    """The fastest and the slowest of the measured steps, but for the first, which warms up."""
    ends = step_ends_ns(timeline)
    steps = [(after - before) / 1e9 for before, after in pairwise(ends)]
    return {"steps": len(steps), "fastest_s": min(steps, default=None), "slowest_s": max(steps, default=None)}


def _timelines(one: SimulatedPlan, run: TimedRun | None) -> dict[str, Any]:
    """The simulated step, and the measured one under it."""
    causes = causes_of_actors(one.plan.priced)
    program, acts, busy_s = one.program, one.found.run.acts, one.causes.busy_s
    there = {stream.rank for stream in program.streams}
    ranks = sorted(sorted(there, key=lambda rank: (-busy_s.get(rank, 0.0), rank))[:MOST_RANKS])
    step_ns = round(one.found.step_time_s * 1e9)
    drawn = {Clock.SIMULATED: timeline_rows(acts, program.actors, program.streams, causes, ranks, step_ns)}
    if run is not None:
        found = run.timeline
        measured = from_zero(found)
        drawn[Clock.MEASURED] = timeline_rows(
            acts_of(measured), found.actors, found.streams, causes, ranks, step_time_ns(measured)
        )
    return {
        "causes": list(WORKING),
        "ranks": ranks,
        "all_ranks": one.plan.ranks,
        "drawn": [{"clock": str(clock), **asdict(rows)} for clock, rows in drawn.items()],
    }
