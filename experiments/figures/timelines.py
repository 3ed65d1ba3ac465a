"""One step of a plan as the simulator predicts it, above the same step as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.store.results import ExperimentResult
from simulator.figures import timeline_figure
from strategy.graph.graph import Phase
from strategy.program.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class StepTimelines:
    """A step of a plan as it was simulated and as it was measured; `phases` is actor name to phase."""

    run: int
    plan: str
    simulated: Timeline
    measured: Timeline
    phases: Mapping[str, Phase]


def data(results: Sequence[ExperimentResult]) -> Sequence[StepTimelines]:
    """The chosen plan of the last run on this machine, under the calibration that was refined there."""
    from dataclasses import replace

    from executor.train import program_of
    from experiments.figures.typical_step import phases_of, typical_step
    from simulator.engine import run as simulate_acts
    from strategy.cost.calibrate import read_calibration
    from strategy.plan.plan import read_plan
    from strategy.program.timeline import read_timeline

    found = []
    for one in results[-1:]:
        name = one.summary["chosen"]
        plan = read_plan(one.folder / f"{name}.json")
        cost = read_calibration(one.folder / "refined.json").cost_model(plan.cluster)
        simulated = simulate_acts(program_of(replace(plan, cost=cost)), 3).timeline
        measured = read_timeline(one.folder / f"{name}.timeline.json.gz")
        steps = typical_step(simulated), typical_step(measured)
        found.append(StepTimelines(one.run, name, *steps, phases_of(plan)))
    return found


@dataclass(frozen=True, slots=True)
class TimelineAct:
    """An act of a step; times are from the step's first computation on."""

    run: int
    plan: str
    source: str
    rank: int
    actor: str
    start_ns: int
    end_ns: int


def table(rows: Sequence[StepTimelines]) -> Sequence[TimelineAct]:
    """The acts of both timelines."""
    return [
        TimelineAct(row.run, row.plan, source, actor.rank, actor.name, record.start_ns, record.end_ns)
        for row in rows
        for source, timeline in (("simulated", row.simulated), ("measured", row.measured))
        for record in timeline.records
        for actor in (timeline.actors[record.actor],)
    ]


def figure(rows: Sequence[StepTimelines]) -> Figure:
    """Both timelines of the first on one time axis; its phases colour the computation."""
    first = rows[0]
    return timeline_figure([first.simulated, first.measured], phases=first.phases)
