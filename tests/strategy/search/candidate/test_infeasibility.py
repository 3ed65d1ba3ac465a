"""Where nothing fits, the search names the smallest limit that would do, and that limit does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.ilp.problem import Problem
from strategy.ilp.solve import solver
from strategy.ilp.solve.memory_feasibility import Feasibility, find_legal, least_peak
from strategy.layout.config import Offload, Recompute
from strategy.passes.training import Training
from strategy.search.candidate import infeasibility
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins
from tests.support.small_plans import MODEL, request, simulated


@pytest.mark.long
def test_too_little_memory_names_what_would_do() -> None:
    asked = replace(request(1, Training(global_batch=2), model=replace(MODEL, layers=1)), memory_limit_bytes=1000)
    with pytest.raises(InfeasibleError) as caught:
        search(asked, simulate=simulated, budget=Budget.of(120))
    smallest = caught.value.smallest_limit
    assert smallest is not None
    assert str(smallest) in str(caught.value)
    plan = search(replace(asked, memory_limit_bytes=smallest), simulate=simulated, budget=Budget.of(120)).plan
    assert max(plan.claims.peak_memory_bytes) == smallest
    with pytest.raises(InfeasibleError):
        search(replace(asked, memory_limit_bytes=smallest * 99 // 100), simulate=simulated, budget=Budget.of(120))


def test_a_second_solver_is_asked_about_every_candidate_before_nothing_is_said_to_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    legal: list[int | None] = []
    peaks: list[int] = []

    def asked_for_legal(problem: Problem, *, budget: Budget) -> Feasibility:
        legal.append(problem.limit)
        return find_legal(problem, budget=budget)

    def asked_for_peak(problem: Problem, *, budget: Budget) -> Feasibility:
        found = least_peak(problem, budget=budget)
        peaks.append(found.peak_bound)
        return found

    monkeypatch.setattr(solver, "find_legal", asked_for_legal)
    monkeypatch.setattr(infeasibility, "least_peak", asked_for_peak)
    pins = Pins(recompute=Recompute.NONE, offload=Offload.NONE)
    asked = replace(request(1, Training(global_batch=2)), memory_limit_bytes=1000, pins=pins)
    with pytest.raises(InfeasibleError):
        search(asked, simulate=simulated, budget=Budget.of(120))
    listed = len(list(candidates_of(asked)))
    assert len(legal) >= listed
    assert set(legal) == {1000}
    assert len(peaks) >= listed
    assert min(peaks) > 1000
