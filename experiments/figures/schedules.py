"""Schedules of a pipeline side by side: what every rank does when, and how long it idles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.dual_pipe import Times, dual_pipe_program
from simulator.pipelines import pipeline
from simulator.simulate import simulate
from strategy.layout.schedule import Schedule
from strategy.program.program import ActKind, Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES, MICRO_BATCHES = 4, 8
_FORWARD = 4
"""Time of a forward pass through a stage: twice as much backward, half of it for the gradients of weights."""
_COLOURS = {"F": "#88CCEE", "B": "#332288", "I": "#AA4499", "W": "#44AA99", "&": "#DDCC77"}
_NAMES = {
    "F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights", "&": "forward & backward",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bar:
    """What a rank does from `begin` to `end`: a letter of the legend, the micro-batch, and the lap."""

    rank: int
    begin: int
    end: int
    letter: str
    number: str
    late: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One schedule: its bars, and the share of a step in which a rank idles."""

    name: str
    bars: tuple[Bar, ...]
    idle_share: float


def data() -> Sequence[Panel]:
    """Every schedule on the same stages and micro-batches; DualPipe's ranks hold two stages each."""
    panels = [_panel(schedule, _program(schedule)) for schedule in Schedule]
    times = Times(_FORWARD, 2 * _FORWARD, _FORWARD, 3 * _FORWARD)
    return [*panels, _panel("dualpipe", dual_pipe_program(STAGES, MICRO_BATCHES, times))]


def _program(schedule: Schedule) -> Program:
    apart, laps = schedule.splits_backward, schedule.default_laps
    forward = _FORWARD // laps
    backward = forward if apart else 2 * forward
    return pipeline(
        STAGES, MICRO_BATCHES, schedule, forward_ns=forward, backward_ns=backward, weight_ns=forward if apart else 0
    )


def _panel(name: str, program: Program) -> Panel:
    found = simulate(program, steps=1)
    return Panel(str(name), tuple(_bars(program, name)), found.idle_share)


def _bars(program: Program, name: str) -> Iterator[Bar]:
    timeline = simulate(program, steps=1).timeline
    apart = name != "dualpipe" and Schedule(name).splits_backward
    for record in timeline.records:
        actor = timeline.actors[record.actor]
        if actor.kind is not ActKind.COMPUTE:
            continue
        if name == "dualpipe":
            letter = "&" if "&" in actor.name else actor.name[0]
            number, late = actor.name.split("&")[0].split(".")[1], actor.name[1] == "1"
        else:
            letter, number, late = actor.name[0], str(record.number % MICRO_BATCHES), "_" in actor.name
            letter = "I" if letter == "B" and apart else letter
        yield Bar(actor.rank, record.start_ns, record.end_ns, letter, number, late)


def figure(panels: Sequence[Panel]) -> Figure:
    """A row of bars per rank and schedule, all on one time axis; hatched, a later lap or the other direction."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    found = Figure(figsize=(7.0, 0.5 + 0.95 * len(panels)), layout="constrained")
    grid = found.subplots(len(panels), 1, sharex=True)
    end = max(bar.end for panel in panels for bar in panel.bars)
    for axes, panel in zip(grid, panels, strict=True):
        for bar in panel.bars:
            hatch = {"hatch": "////", "alpha": 0.75} if bar.late else {}
            axes.broken_barh(
                [(bar.begin, bar.end - bar.begin)], (bar.rank - 0.42, 0.84), facecolor=_COLOURS[bar.letter],
                edgecolor="white", linewidth=0.4, **hatch,
            )  # fmt: skip
            axes.text(
                (bar.begin + bar.end) / 2, bar.rank, bar.number, ha="center", va="center_baseline", fontsize=4.5,
                color="white" if bar.letter in "BI" else "black",
            )  # fmt: skip
        axes.set_title(f"{panel.name}: {100 * panel.idle_share:.1f} % idle", loc="left", fontsize=7, pad=2)
        axes.set_ylim(STAGES - 0.5, -0.5)
        axes.set_yticks(range(STAGES), [f"rank {rank}" for rank in range(STAGES)], fontsize=6)
        axes.set_xlim(0, end)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=6)
    grid[-1].set_xlabel("time (forward of one micro-batch through a stage = 4)", fontsize=7)
    shown = {bar.letter for panel in panels for bar in panel.bars}
    patches = [Patch(facecolor=_COLOURS[letter], label=_NAMES[letter]) for letter in _NAMES if letter in shown]
    found.legend(handles=patches, loc="outside upper center", ncols=len(patches), frameon=False, fontsize=7)
    return found
