"""Schedules of a pipeline side by side: what every rank does when, and how long it idles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from simulator.dual_pipe import dual_pipe_order, dual_pipe_program
from simulator.pipelines import NAMES, pipeline
from simulator.simulate import simulate
from simulator.stage_times import StageTimes
from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order
from strategy.program.program import ActKind, Program
from strategy.program.timeline import Timeline

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
class _Act:
    """What an act of a rank is, whenever it takes place."""

    letter: str
    number: int
    late: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One schedule: its bars, and the share of a step in which a rank idles."""

    name: str
    bars: tuple[Bar, ...]
    idle_share: float


def data() -> Sequence[Panel]:
    """Every schedule on the same stages and micro-batches; DualPipe's ranks hold two stages each."""
    panels = [_panel(schedule, _program(schedule), partial(_acts, schedule)) for schedule in Schedule]
    times = [StageTimes(_FORWARD, 2 * _FORWARD, _FORWARD)] * STAGES
    return [*panels, _panel("dualpipe", dual_pipe_program(times, MICRO_BATCHES), _dual_pipe_acts)]


def _program(schedule: Schedule) -> Program:
    apart, laps = schedule.splits_backward, schedule.default_laps
    forward = _FORWARD // laps
    backward = forward if apart else 2 * forward
    return pipeline(
        STAGES, MICRO_BATCHES, schedule, forward_ns=forward, backward_ns=backward, weight_ns=forward if apart else 0
    )


def _panel(name: str, program: Program, acts: Callable[[int], Iterator[_Act]]) -> Panel:
    found = simulate(program, steps=1)
    return Panel(str(name), tuple(_bars(program, found.timeline, acts)), found.idle_share)


def _bars(program: Program, timeline: Timeline, acts: Callable[[int], Iterator[_Act]]) -> Iterator[Bar]:
    """A bar per act of the streams that compute; `acts` gives those of a rank, in the order of its stream."""
    act_of: dict[int, dict[int, _Act]] = {}
    for stream in program.streams:
        if program.actors[stream.sequence[0]].kind is ActKind.COMPUTE:
            for actor, act in zip(stream.sequence, acts(stream.rank), strict=True):
                found = act_of.setdefault(actor, {})
                found[len(found)] = act
    for record in timeline.records:
        if record.actor in act_of:
            act = act_of[record.actor][record.number]
            rank = timeline.actors[record.actor].rank
            yield Bar(rank, record.start_ns, record.end_ns, act.letter, str(act.number), act.late)


def _acts(schedule: Schedule, rank: int) -> Iterator[_Act]:
    for chunk in chunk_order(schedule, STAGES, rank, MICRO_BATCHES, schedule.default_laps):
        inputs = chunk.phase is Phase.BACKWARD and schedule.splits_backward
        yield _Act("I" if inputs else NAMES[chunk.phase], chunk.micro_batch, chunk.lap > 0)


def _dual_pipe_acts(rank: int) -> Iterator[_Act]:
    for pieces in dual_pipe_order(STAGES, rank, MICRO_BATCHES):
        first = pieces[0]
        yield _Act("&" if len(pieces) > 1 else str(first.part), first.micro_batch, first.direction == 1)


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
