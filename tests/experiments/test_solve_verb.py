"""`sbplan solve` on files: what it says where nothing fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strategy.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.problem_file import write_problem
from tests.experiments.conftest import Command, Said

FULL = Problem(
    "full",
    (
        Node("a", (1, 2), (Usage(10, 20, (60, 50)),)),
        Node("b", (1, 2), (Usage(15, 30, (70, 45)),)),
        Node("c", (5,), (Usage(30, 40, (10,)),)),
    ),
    (Edge(0, 1, (0, 0, 0, 0)),),
    limit=90,
)


def _solve(command: Command, folder: Path, problem: Problem, *options: object) -> Said:
    path = folder / "problem.json"
    write_problem(problem, path)
    return command("solve", path, *options)


def test_where_nothing_fits_the_times_and_the_excess_are_named(command: Command, tmp_path: Path) -> None:
    said = _solve(command, tmp_path, FULL, "--json")
    document, choice = said.out.splitlines()
    assert (said.code, json.loads(document)["status"], json.loads(document)["cost"], choice) == (
        3,
        "infeasible",
        None,
        "[]",
    )
    assert said.err == (
        "sbplan: infeasible: full: no choice fits in 90 bytes: from 15 to 20 at least 95 bytes are held, 5 too many; "
        "the smallest limit that works is 95 bytes\n"
    )


def test_where_pairs_exclude_everything_no_time_is_blamed(command: Command, tmp_path: Path) -> None:
    nodes = FULL.nodes[:2]
    said = _solve(command, tmp_path, Problem("shut", nodes, (Edge(0, 1, (FORBIDDEN,) * 4),), limit=200))
    assert (said.code, said.out) == (3, "[]\n")
    assert said.err == "sbplan: infeasible: shut: the forbidden pairs leave no choice, whatever the limit\n"


def test_many_times_are_counted(command: Command, tmp_path: Path) -> None:
    nodes = tuple(Node(f"n{i}", (1,), (Usage(2 * i, 2 * i + 1, (100 + i,)),)) for i in range(5))
    said = _solve(command, tmp_path, Problem("rows", nodes, (), limit=50))
    assert said.code == 3
    assert "from 8 to 9 at least 104 bytes are held, 54 too many; from 6 to 7 " in said.err
    assert "; and 2 more times; the smallest limit that works is 104 bytes\n" in said.err


def test_without_time_the_smallest_limit_is_told_as_far_as_it_is_known(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import strategy.solve

    def give_up(problem: Problem, *, time_limit_s: float | None) -> int:
        raise strategy.solve.PeakLimitError(91, 120)

    monkeypatch.setattr(strategy.solve, "smallest_limit", give_up)
    said = _solve(command, tmp_path, FULL, "--time-limit", "5")
    assert said.code == 3
    assert "the smallest memory limit is between 91 and 120: the time limit was reached" in said.err
