"""Figures of timelines and of memory, for papers.

Colours: Paul Tol's "muted" scheme (SRON/EPS/TN/09-002, 2021), which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.memory_timeline import MemoryTimeline
from strategy.base.units import SIZE_UNITS, TIME_UNITS
from strategy.graph.graph import Phase
from strategy.program.program import ActKind
from strategy.program.timeline import ActRecord, Timeline, by_stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Mapping[str, str] = {
    "forward": "#88CCEE",
    "backward": "#332288",
    "weight": "#6699CC",
    "update": "#117733",
    "compute": "#44AA99",
    "load": "#999933",
    ActKind.SLICE: "#661100",
    "all-reduce": "#CC6677",
    "reduce-scatter": "#882255",
    "all-gather": "#DDCC77",
    "all-to-all": "#AA4499",
    "transfer": "#AAAAAA",
    "waits for peers": "#E9E9E9",
}
"""What a bar means -> its colour, in the order of the legend."""

_DARK = {"backward", "update", ActKind.SLICE, "reduce-scatter", "all-to-all"}
"""Meanings whose bars take white text."""

_STYLE: dict[Any, Any] = {
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.size": 0,
    "legend.fontsize": 7,
    "pdf.fonttype": 42,
}

_WIDTH_INCHES = 7.0
"""The text width of a two-column paper."""

_ROW_INCHES = 0.2


def timeline_figure(
    timelines: Sequence[Timeline], *, phases: Mapping[str, Phase] | None = None, ranks: Sequence[int] | None = None
) -> Figure:
    """Timelines above each other on one time axis, in the order given; a row per stream that does something.

    Bars wide enough carry the number of their micro-batch; idle time is white.

    Args:
        timelines: one, or several of the same program: simulated first, then measured.
        phases: actor name -> the phase that colours its bar; other compute is coloured as such.
        ranks: which to draw; all by default.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    drawn = [_rows(timeline, ranks) for timeline in timelines]
    rows = [len(found) for found in drawn]
    end_ns = max(timeline.makespan_ns for timeline in timelines)
    height = 0.75 + sum(0.3 + _ROW_INCHES * count for count in rows)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
        grid = figure.subplots(len(timelines), 1, sharex=True, squeeze=False, height_ratios=[max(1, n) for n in rows])
        shown: set[str] = set()
        scale_ns, unit = _time_unit(end_ns)
        for axes, timeline, streams in zip(grid[:, 0], timelines, drawn, strict=True):
            shown |= _draw_timeline(axes, timeline, streams, phases or {}, scale_ns, end_ns)
        grid[-1, 0].set_xlim(0, max(end_ns, 1) / scale_ns)
        grid[-1, 0].set_xlabel(f"time ({unit})")
        patches = [Patch(facecolor=_COLOURS[m], edgecolor="none", label=m) for m in _COLOURS if m in shown]
        figure.legend(handles=patches, loc="outside upper center", ncols=min(len(patches), 7), frameon=False)
    return figure


def memory_figure(memories: Sequence[MemoryTimeline], *, limit_bytes: int | None = None) -> Figure:
    """Live bytes over time, a line per rank; what it allocates is dotted, the limit of a device dashed."""
    import matplotlib
    from matplotlib.figure import Figure

    end_ns = max((memory.time_ns[-1] for memory in memories), default=0)
    levels = [nbytes for memory in memories for nbytes in (memory.peak_nbytes, memory.allocated_nbytes)]
    peak = max([*levels, limit_bytes or 0])
    scale_ns, time_unit = _time_unit(end_ns)
    size_unit = next((u for u in ("TiB", "GiB", "MiB", "KiB") if peak >= SIZE_UNITS[u]), "B")
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH_INCHES, 2.2), layout="constrained")
        axes = figure.subplots()
        colours = matplotlib.colormaps["viridis"]
        for index, memory in enumerate(memories):
            times = [time / scale_ns for time in (*memory.time_ns, end_ns)]
            sizes = [nbytes / SIZE_UNITS[size_unit] for nbytes in (*memory.nbytes, memory.nbytes[-1])]
            colour = colours(0.9 * index / max(1, len(memories) - 1))
            axes.step(times, sizes, where="post", color=colour, linewidth=1.0, label=f"rank {memory.rank}")
            if memory.allocated_nbytes:
                allocated = memory.allocated_nbytes / SIZE_UNITS[size_unit]
                label = "allocated" if index == 0 else None
                axes.axhline(allocated, color=colour, linestyle=":", linewidth=0.8, label=label)
        if limit_bytes:
            axes.axhline(
                limit_bytes / SIZE_UNITS[size_unit], color="black", linestyle="--", linewidth=0.8, label="limit"
            )
        axes.set_xlim(0, max(end_ns, 1) / scale_ns)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(f"time ({time_unit})")
        axes.set_ylabel(f"live memory ({size_unit})")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False, ncols=1 + len(memories) // 12)
    return figure


THIN = 0.004
"""Part of the time shown below which an act is drawn without an edge."""

Row = tuple[int, tuple[ActRecord, ...]]
"""A stream and what it did."""


def _rows(timeline: Timeline, ranks: Sequence[int] | None) -> list[Row]:
    """Streams that did something, by rank; those that compute stand above those that communicate."""
    rows = [
        (stream, records)
        for stream, records in enumerate(by_stream(timeline))
        if records and (ranks is None or timeline.streams[stream].rank in ranks)
    ]

    def row_order(row: Row) -> tuple[int, bool, int]:
        stream, records = row
        computes = any(timeline.actors[record.actor].kind is ActKind.COMPUTE for record in records)
        return timeline.streams[stream].rank, not computes, stream

    return sorted(rows, key=row_order)


def _draw_timeline(
    axes: Axes, timeline: Timeline, rows: Sequence[Row], phases: Mapping[str, Phase], scale_ns: float, end_ns: int
) -> set[str]:
    """Draw the rows of one timeline; gives the meanings that it shows."""
    spans: dict[str, dict[int, list[tuple[float, float]]]] = {}
    ranks = [timeline.streams[stream].rank for stream, _ in rows]
    for row, (_, records) in enumerate(rows):
        for record in records:
            meaning = _meaning(timeline, record, phases)
            begin, width = record.start_ns / scale_ns, (record.end_ns - record.start_ns) / scale_ns
            if width:
                spans.setdefault(meaning, {}).setdefault(row, []).append((begin, width))
            if record.ready_ns < record.start_ns:
                wait = record.ready_ns / scale_ns, (record.start_ns - record.ready_ns) / scale_ns
                spans.setdefault("waits for peers", {}).setdefault(row, []).append(wait)
            _number(axes, timeline, record, row, meaning, scale_ns, end_ns)
    for meaning, by_row in spans.items():
        half = 0.12 if meaning == "waits for peers" else 0.4
        for row, found in by_row.items():
            for thin in (True, False):
                # A white edge tells one act from the next, and would hide acts that are no wider than it.
                bars = [span for span in found if (span[1] * scale_ns < THIN * end_ns) is thin]
                edge = _COLOURS[meaning] if thin else "white"
                height = (row - half, 2 * half)
                axes.broken_barh(bars, height, facecolor=_COLOURS[meaning], edgecolor=edge, linewidth=0.3)
    for row in range(1, len(ranks)):
        if ranks[row] != ranks[row - 1]:
            axes.axhline(row - 0.5, color="#CCCCCC", linewidth=0.5, zorder=0)
    axes.set_yticks(range(len(rows)), [_label(timeline, rows, row) for row in range(len(rows))])
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.set_title(timeline.clock.value, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return set(spans)


def _label(timeline: Timeline, rows: Sequence[Row], row: int) -> str:
    """The stream's name, after its rank where a new rank begins."""
    stream = timeline.streams[rows[row][0]]
    new = row == 0 or timeline.streams[rows[row - 1][0]].rank != stream.rank
    return f"rank {stream.rank}  {stream.name}" if new else stream.name


def _number(
    axes: Axes, timeline: Timeline, record: ActRecord, row: int, meaning: str, scale_ns: float, end_ns: int
) -> None:
    """Write the micro-batch into a bar that is wide enough for it."""
    actor = timeline.actors[record.actor]
    if actor.acts_per_step > 1 and (record.end_ns - record.start_ns) * 80 >= end_ns:
        axes.text(
            (record.start_ns + record.end_ns) / 2 / scale_ns,
            row,
            str(record.number % actor.acts_per_step),
            ha="center",
            va="center_baseline",
            fontsize=6,
            color="white" if meaning in _DARK else "black",
        )


def _meaning(timeline: Timeline, record: ActRecord, phases: Mapping[str, Phase]) -> str:
    actor = timeline.actors[record.actor]
    if actor.kind is ActKind.COMPUTE and actor.name in phases:
        return phases[actor.name].value
    return actor.kind.value.replace("_", "-")


def _time_unit(end_ns: int) -> tuple[float, str]:
    """Nanoseconds per unit, and the unit, in which an axis up to `end_ns` has readable numbers."""
    unit = next((u for u in ("s", "ms", "us") if end_ns >= 2 * TIME_UNITS[u] / TIME_UNITS["ns"]), "ns")
    return TIME_UNITS[unit] / TIME_UNITS["ns"], "µs" if unit == "us" else unit
