"""Timeline rows: one step of a timeline as bars, a row per stream of a rank; what is too short to be seen is joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.explanation.time_by_cause import LOCAL, WORKING
from simulator.acts import Acts
from strategy.program.program import ActKind, Actor, Stream
from strategy.program.timeline import ActorLabel, StreamLabel

MOST_BARS = 20_000
"""Of one timeline."""
MOST_RANKS = 64
"""That have rows; those first that are busy longest, where there are more."""


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """The bars of one stream, in order: nanoseconds since the step began, cause (place in `WORKING`), name, acts."""

    rank: int
    stream: str
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    cause: tuple[int, ...]
    name: tuple[int, ...]
    acts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimelineRows:
    """One step: how long it is, the rows, the names that bars have by number, and what is joined if bars are closer."""

    span_ns: int
    rows: tuple[TimelineRow, ...]
    names: tuple[str, ...]
    joined_below_ns: int


Bar = tuple[int, int, int, int, int]
"""Start, end, cause, name, acts."""


def timeline_rows(
    acts: Acts,
    actors: Sequence[Actor | ActorLabel],
    streams: Sequence[Stream | StreamLabel],
    cause_of: Mapping[str, str],
    ranks: Sequence[int],
    step_ns: int,
    *,
    most_bars: int = MOST_BARS,
) -> TimelineRows:
    """The last `step_ns` of a timeline, on some ranks: from the end of the last step but one to the end of the last.

    Acts that began before are cut.
    """
    begin_ns = acts.makespan_ns - step_ns
    there, stream = acts.end_ns > begin_ns, acts.stream
    numbers: dict[str, int] = {}
    name_of = [numbers.setdefault(actor.name, len(numbers)) for actor in actors]
    turn_of = [WORKING.index(cause_of.get(actor.name, LOCAL)) for actor in actors]
    bars: list[tuple[int, str, list[Bar]]] = []
    computes = [actor.kind is ActKind.COMPUTE for actor in actors]
    busy = {i for i in range(len(streams)) if any(computes[a] for a in acts.actor[stream == i].tolist())}
    for index in sorted(range(len(streams)), key=lambda i: (streams[i].rank, i not in busy, i)):
        here = np.flatnonzero(there & (stream == index))
        if streams[index].rank in ranks and len(here):
            columns = (np.maximum(acts.start_ns[here] - begin_ns, 0), acts.end_ns[here] - begin_ns, acts.actor[here])
            mine = [(a, b, turn_of[i], name_of[i], 1) for a, b, i in zip(*(c.tolist() for c in columns), strict=True)]
            bars.append((streams[index].rank, streams[index].name, sorted(bar for bar in mine if bar[1] > bar[0])))
    resolution_ns = 0
    while sum(len(mine) for _, _, mine in bars) > most_bars:
        resolution_ns = 2 * resolution_ns or max(1, step_ns * len(bars) // most_bars // 8)
        bars = [(rank, name, _joined(mine, resolution_ns)) for rank, name, mine in bars]
    rows = tuple(TimelineRow(rank, name, *_columns(mine)) for rank, name, mine in bars)
    return TimelineRows(step_ns, rows, tuple(numbers), resolution_ns)


def _joined(bars: Sequence[Bar], resolution_ns: int) -> list[Bar]:
    """Bars that are closer than a resolution are one, and no pass of many short acts is lost in a longer bar beside it.

    First those of one cause; then short ones together, until they are short no more; then those of one cause that this
    made; last the short ones that are left, with what they are beside.
    """

    def is_short(bar: Bar) -> bool:
        return bar[1] - bar[0] < resolution_ns

    def are_alike(one: Bar, other: Bar) -> bool:
        return one[2] == other[2]

    found = _merged(bars, resolution_ns, are_alike)
    found = _merged(found, resolution_ns, lambda one, other: is_short(one) and is_short(other))
    found = _merged(found, resolution_ns, are_alike)
    return _merged(found, resolution_ns, lambda one, other: is_short(one) or is_short(other))


def _merged(bars: Sequence[Bar], resolution_ns: int, is_one: Callable[[Bar, Bar], bool]) -> list[Bar]:
    """Neighbours that are close and belong together as one bar, with cause and name of the longer one."""
    found: list[Bar] = []
    for bar in bars:
        last = found[-1] if found else bar
        if not found or bar[0] - last[1] >= resolution_ns or not is_one(last, bar):
            found.append(bar)
            continue
        longer = bar if bar[1] - bar[0] > last[1] - last[0] else last
        found[-1] = (last[0], max(last[1], bar[1]), longer[2], longer[3], last[4] + bar[4])
    return found


def _columns(bars: Sequence[Bar]) -> tuple[tuple[int, ...], ...]:
    """Bars by column."""
    return tuple(tuple(column) for column in zip(*bars, strict=True)) if bars else ((),) * 5
