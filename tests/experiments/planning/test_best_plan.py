"""The search as a function: the plan that the search verb would write."""

from __future__ import annotations

import pytest

from experiments.planning.best_plan import best_plan
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.cost.cost import CostModel
from strategy.passes.training import Training
from strategy.search.search import search
from strategy.space.request import Pins, Request
from tests.support.small_plans import MODEL, cluster, exchange_left_alone


def request() -> Request:
    return Request("small", MODEL, Training(4), CostModel(cluster(2), {}), 2**40, Pins(dp=2))


@exchange_left_alone()
def test_it_is_the_searchs_plan() -> None:
    wanted = search(request(), simulate=simulated_step, budget=Budget.of(60.0)).plan
    assert best_plan(request(), time_limit_s=60.0).plan_hash == wanted.plan_hash


def test_no_time_is_no_plan() -> None:
    with pytest.raises(OutOfTimeError):
        best_plan(request(), time_limit_s=0.0)
