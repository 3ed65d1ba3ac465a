"""What the demo shows people: one table and two figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executor.train import program_of
from experiments.loop import Outcome, document
from simulator.engine import run as simulate_acts
from strategy.program import ActKind
from strategy.timeline import Timeline, from_zero, step_of


def table(outcome: Outcome) -> str:
    """Predicted against measured step times, in milliseconds."""
    titles = f"{'predicted':>11} {'measured':>11} {'refined':>11} {'error':>7}"
    lines = ["", f"{'plan':10} {'data':>4} {'tensor':>6} {'pipe':>4} {'micro':>5} {titles}"]
    for contender in sorted(outcome.contenders, key=lambda c: c.measured_s):
        config = contender.plan.config
        error = abs(contender.refined_s - contender.measured_s) / contender.measured_s
        figures = (
            f"{seconds * 1e3:8.1f} ms" for seconds in (contender.predicted_s, contender.measured_s, contender.refined_s)
        )
        mark = " <- chosen before any run" if contender.name == outcome.chosen else ""
        lines.append(
            f"{contender.name:10} {config.dp:4} {config.tp:6} {config.pp:4} {config.num_micro_batches:5} "
            f"{' '.join(figures)} {error:7.1%}{mark}"
        )
    found = document(outcome)
    lines.append(
        f"\nerror before refinement {found['error_before_refine']:.1%}, after (on plans not seen) "
        f"{found['error_after_refine']:.1%}; regret {found['regret']:.1%}; "
        f"loss {found['loss_first']:.3f} -> {found['loss_last']:.3f}, "
        f"largest difference between plans {found['max_loss_difference']:.1e}"
    )
    return "\n".join(lines)


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Write the two figures; gives their paths."""
    from experiments.figures.predicted_measured import Point, figure
    from experiments.figures.timelines import figure as timelines

    chosen = next(c for c in outcome.contenders if c.name == outcome.chosen)
    assert chosen.timeline is not None
    program = program_of(replace(chosen.plan, cost=outcome.calibration.cost_model(chosen.plan.cluster)))
    steps = 3
    simulated = last_step(simulate_acts(program, steps).timeline)
    paths = [folder / "timelines.png", folder / "predicted_measured.png"]
    timelines(simulated, last_step(chosen.timeline)).savefig(paths[0], dpi=150)
    points = [Point(c.name, c.predicted_s, c.refined_s, c.measured_s, c.samples_s) for c in outcome.contenders]
    figure(points).savefig(paths[1], dpi=150)
    return paths


def last_step(timeline: Timeline) -> Timeline:
    """The acts of the last step alone, from time 0; what was loaded ahead of the step is left out."""
    records = [r for r in timeline.records if step_of(timeline, r) == timeline.steps - 1]
    begun = min(r.start_ns for r in records if timeline.actors[r.actor].kind is not ActKind.LOAD)
    return from_zero(replace(timeline, records=tuple(r for r in records if r.start_ns >= begun)))
