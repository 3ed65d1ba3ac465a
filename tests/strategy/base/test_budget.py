"""Budgets: a deadline and a limit of work, made once, shared out, and over when either is."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from strategy.base import budget as module
from strategy.base.budget import ENTRIES_PER_UNIT, UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is set by hand."""
    clock = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def test_the_time_counts_from_where_the_budget_is_made(now_s: list[float]) -> None:
    budget = Budget.of(10.0)
    assert (budget.left_s(), budget.is_over()) == (10.0, False)
    now_s[0] = 104.0
    assert (budget.left_s(), budget.is_over()) == (6.0, False)
    now_s[0] = 110.0
    assert (budget.left_s(), budget.is_over()) == (0.0, True)
    now_s[0] = 200.0
    assert (budget.left_s(), budget.is_over()) == (0.0, True)


def test_the_work_is_over_after_so_many_entries() -> None:
    budget = Budget.of(work_limit=3)
    assert budget.left_s() == math.inf
    assert not budget.is_over()
    assert not budget.is_over(3 * ENTRIES_PER_UNIT - 1)
    assert budget.is_over(3 * ENTRIES_PER_UNIT)


def test_a_share_is_of_the_time_that_is_left(now_s: list[float]) -> None:
    budget = Budget.of(10.0, 3)
    now_s[0] = 106.0
    share = budget.share(0.5)
    assert (share.left_s(), share.max_entries) == (2.0, budget.max_entries)
    assert budget.left_s() == 4.0
    now_s[0] = 120.0
    assert budget.share(0.5).is_over()


def test_no_limit_is_never_over() -> None:
    assert Budget.of() == UNLIMITED == UNLIMITED.share(0.1)
    assert not UNLIMITED.is_over(10**18)


def test_no_time_is_over_at_once() -> None:
    assert Budget.of(0.0).is_over()


def test_work_ends_where_the_budget_is_over(now_s: list[float]) -> None:
    budget = Budget.of(10.0)
    budget.check()
    now_s[0] = 110.0
    with pytest.raises(OutOfTimeError, match="raise the time limit"):
        budget.check()
    UNLIMITED.check()
