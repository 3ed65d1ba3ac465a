"""What the demo shows people: one table and two figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from executor.train import program_of
from experiments.loop.loop import Outcome, document
from simulator.engine import run as simulate_acts
from simulator.figures import timeline_figure


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
    """Write the figures; gives their paths. Timelines are those of the chosen plan and of the pipeline."""
    from experiments.figures.picture import save
    from experiments.figures.predicted_measured import Point, figure
    from experiments.figures.typical_step import phases_of, typical_step

    paths = []
    for contender in outcome.contenders:
        if contender.timeline is not None and contender.name in (outcome.chosen, "pipeline"):
            cost = outcome.calibration.cost_model(contender.plan.cluster)
            simulated = simulate_acts(program_of(replace(contender.plan, cost=cost)), 3).timeline
            steps = typical_step(simulated), typical_step(contender.timeline)
            found = timeline_figure(steps, phases=phases_of(contender.plan))
            paths.append(folder / f"timelines_{contender.name}.png")
            save(found, paths[-1], dpi=150)
    points = [Point(c.name, c.predicted_s, c.refined_s, c.measured_s, c.samples_s) for c in outcome.contenders]
    paths.append(folder / "predicted_measured.png")
    save(figure(points), paths[-1], dpi=150)
    return paths
