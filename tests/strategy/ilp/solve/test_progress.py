"""Progress: what is known, what is told of it, and when to stop."""

from __future__ import annotations

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.ilp.solve import solve
from strategy.ilp.solve.progress import Progress
from tests.strategy.ilp.problems import ladder
from tests.strategy.ilp.solve.oracle import DILEMMA


def test_progress_is_told_and_moves_towards_the_gap() -> None:
    told: list[tuple[float, int | None, int | None]] = []
    problem = ladder(rungs=6, seed=1)
    answer = solve(problem, progress=lambda *said: told.append(said))
    bounds = [bound for _, bound, _ in told if bound is not None]
    costs = [cost for _, _, cost in told if cost is not None]
    assert bounds == sorted(bounds)
    assert costs == sorted(costs, reverse=True)
    assert (bounds[-1], costs[-1]) == (answer.lower_bound, answer.cost)


def test_only_what_is_legal_and_cheaper_is_taken() -> None:
    progress = Progress(DILEMMA, 0.0, UNLIMITED)
    progress.offer((0,))
    assert (progress.cost, progress.first_feasible_s) == (None, None)
    progress.offer((1,))
    assert (progress.cost, progress.choice, progress.peak) == (10, (1,), 0)
    assert progress.first_feasible_s is not None


def test_the_upper_bound_is_the_incumbent_or_the_cutoff() -> None:
    progress = Progress(DILEMMA, 0.0, UNLIMITED)
    assert progress.upper_bound is None
    progress.offer((1,))
    assert progress.upper_bound == 10
    progress.cutoff = 7
    assert progress.upper_bound == 7


def test_a_bound_only_rises_and_ends_at_the_upper_bound() -> None:
    progress = Progress(DILEMMA, 0.0, UNLIMITED, cutoff=7)
    for bound, method, known in ((3, "reductions", 3), (2, "messages", 3), (9, "branching", 7)):
        progress.raise_bound(bound, method)
        assert progress.lower_bound == known
    assert progress.method == "branching"


def test_the_work_ends_when_the_budget_does() -> None:
    progress = Progress(DILEMMA, 0.0, Budget(max_entries=10))
    progress.spend(9)
    with pytest.raises(OutOfTimeError):
        progress.spend(1)
