"""What others' searches find over what ours does, on the same problem in the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.figures.style import COLOURS, MARKERS, panels
from experiments.store.results import ExperimentResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUR_SEARCH = "ours"


@dataclass(frozen=True, slots=True)
class SearchedStep:
    """What one method found on one problem: seconds of the objective, none without an answer, and of its own time."""

    run: int
    problem: str
    method: str
    step_s: float | None
    bound_s: float
    time_s: float
    found: str


def data(results: Sequence[ExperimentResult]) -> Sequence[SearchedStep]:
    """A row per problem and method."""
    return [
        SearchedStep(one.run, one.name, method, got["step_s"], one.summary["bound_s"], got["time_s"], got["what"])
        for one in results
        for method, got in one.summary["results"].items()
    ]


def figure(rows: Sequence[SearchedStep]) -> Figure:
    """A row per problem, a mark per method; ours is 1, and the bound that it proves a bar to its left."""
    problems = list(dict.fromkeys(row.problem for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    found, (axes,) = panels(1, height_in=1.1 + 0.36 * len(problems))
    for number, method in enumerate(methods):
        points = []
        for place, problem in enumerate(problems):
            ours = next(row for row in rows if (row.problem, row.method) == (problem, OUR_SEARCH))
            mine = next((row for row in rows if (row.problem, row.method) == (problem, method)), None)
            if ours.step_s and mine is not None and mine.step_s:
                points.append((mine.step_s / ours.step_s, place + 0.12 * (number - (len(methods) - 1) / 2)))
            if method == OUR_SEARCH and ours.step_s:
                axes.hlines(place, ours.bound_s / ours.step_s, 1, color="black", alpha=0.15, linewidth=8)
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, color=COLOURS[number], marker=MARKERS[number], s=20, label=method, zorder=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks(range(len(problems)), [problem.replace(" on ", "\n") for problem in problems])
    axes.set_ylim(len(problems) - 0.5, -0.5)
    axes.set_xlabel("step over ours (grey: down to the proved bound)")
    found.legend(frameon=False, loc="outside upper center", ncols=3)
    return found
