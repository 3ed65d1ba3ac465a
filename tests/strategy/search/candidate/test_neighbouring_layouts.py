"""Neighbouring layouts: faster as simulated, proved as well, legal, and none where ops are many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.planning.prices import simulated_step
from strategy.base.budget import UNLIMITED, Budget
from strategy.plan.plan import Plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.plan.verify import verify
from strategy.search.candidate import neighbouring_layouts
from strategy.search.candidate.neighbouring_layouts import fastest_neighbour
from strategy.search.search import search
from strategy.space.request import Request
from tests.support.long_parameters import long_but
from tests.support.random_requests import random_case


def plan_as_solved(asked: Request, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """The answer of a search that looks at no neighbours."""
    with monkeypatch.context() as context:
        context.setattr(neighbouring_layouts, "MOST_OPS", 0)
        return search(asked, simulate=simulated_step, budget=Budget.of(300)).plan


@pytest.mark.parametrize(("seed", "part"), long_but([(214, 0.92), (95, 0.95)], 0))
def test_two_that_read_a_partial_sum_wait_for_no_collective(
    seed: int, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts of the same objective, by which one loss is added up before it is needed, and another is not."""
    asked = replace(random_case(seed).request, gap=0.0)
    before = plan_as_solved(asked, monkeypatch)
    found = fastest_neighbour(asked, before, simulated_step, UNLIMITED)
    assert found.claims.step_time_s < part * before.claims.step_time_s
    assert (found.config, found.claims.objective_s) == (before.config, before.claims.objective_s)
    assert found.certificate == before.certificate
    assert verify(found) == []
    assert replayed_bound(found) == replayed_bound(before)
    assert search(asked, simulate=simulated_step, budget=Budget.of(300)).plan.layout == found.layout


@pytest.mark.long
def test_what_is_proved_of_a_neighbour_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gap may take the place of none where one is allowed, and grows no further."""
    asked = replace(random_case(400).request, gap=0.01)
    before = plan_as_solved(asked, monkeypatch)
    found = fastest_neighbour(asked, before, simulated_step, UNLIMITED)
    assert found.claims.step_time_s < 0.97 * before.claims.step_time_s
    assert 0 == before.claims.gap < found.claims.gap
    assert found.claims.gap <= asked.gap
    assert found.claims.lower_bound_s == before.claims.lower_bound_s
    assert verify(found) == []


def test_without_time_or_with_many_ops_the_plan_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = random_case(214).request
    before = plan_as_solved(asked, monkeypatch)
    assert fastest_neighbour(asked, before, simulated_step, Budget.of(0.0)) is before
    monkeypatch.setattr(neighbouring_layouts, "MOST_OPS", len(before.graph.ops) - 1)
    assert fastest_neighbour(asked, before, simulated_step, UNLIMITED) is before
