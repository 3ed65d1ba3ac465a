"""What the search decides about the exchange of gradients, and what it leaves as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, InputError
from strategy.layout.config import PlanConfig
from strategy.lowering.exchange_buckets import bucketable_bytes
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.search import exchange_choice
from strategy.search.exchange_choice import COUNTS, _rounds, with_exchange
from strategy.search.search import search
from strategy.space.request import Pins, Request
from tests.support.small_plans import config_of, deduced_plan, request, simulated

MODEL = GptConfig(layers=3, width=8, heads=2, sequence=4, vocabulary=16)
TRAINING = Training(global_batch=4, num_micro_batches=1)
PINNED = Pins(dp=2, tp=1, zero_stage=0)


def plan_of(*, overlaps: bool) -> tuple[Request, Plan]:
    asked = request(2, TRAINING, model=MODEL, overlaps=overlaps)
    return asked, deduced_plan(asked, config_of(TRAINING, dp=2), ("data", "tensor"), simulated)


def test_where_nothing_overlaps_one_bucket_holds_all() -> None:
    asked, plan = plan_of(overlaps=False)
    found = with_exchange(asked, plan, simulated, UNLIMITED)
    assert found.config.bucket_bytes == sum(bucketable_bytes(plan.priced))
    assert found.claims.step_time_s < plan.claims.step_time_s
    assert verify(found) == []


def test_where_it_does_the_fastest_of_all_sizes_is_found() -> None:
    asked, plan = plan_of(overlaps=True)
    found = with_exchange(asked, plan, simulated, UNLIMITED)
    total = sum(bucketable_bytes(plan.priced))
    pinned = (Pins(bucket_bytes=-(-total // count), exchange_streams=1) for count in COUNTS)
    each = [with_exchange(replace(asked, pins=one), plan, simulated, UNLIMITED).claims.step_time_s for one in pinned]
    assert found.claims.step_time_s <= min(each) < plan.claims.step_time_s
    assert verify(found) == []


def test_sizes_are_looked_at_two_at_a_time_until_the_best_has_worse_ones_beside_it() -> None:
    steps = [9.0, 7.0, 5.0, 4.0, 6.0, 8.0]
    assert list(_rounds(6, steps.__getitem__)) == [[2, 4], [1, 3]]
    assert list(_rounds(6, float)) == [[2, 4], [1, 3], [0]]
    assert list(_rounds(6, lambda i: -i)) == [[2, 4], [3, 5]]
    assert list(_rounds(1, lambda i: 1.0)) == [[0]]
    assert list(_rounds(0, lambda i: 1.0)) == []


def test_where_the_first_two_gain_nothing_there_is_no_looking_further(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plan = plan_of(overlaps=True)
    looked_at: list[list[int]] = []

    def hardly_faster(*args: Any) -> list[Plan | None]:
        looked_at.append([config.bucket_bytes for config in args[2]])
        return [None, replace(plan, claims=replace(plan.claims, step_time_s=plan.claims.step_time_s * 0.9995))]

    monkeypatch.setattr(exchange_choice, "_simulated", hardly_faster)
    found = with_exchange(asked, plan, simulated, UNLIMITED)
    assert found.claims.step_time_s == plan.claims.step_time_s * 0.9995
    assert [len(few) for few in looked_at] == [2]


def test_the_claims_are_those_of_the_program_and_the_bound_is_that_of_the_layout(tmp_path: Path) -> None:
    asked, plan = plan_of(overlaps=True)
    found = with_exchange(asked, plan, simulated, UNLIMITED)
    assert (found.claims.objective_s, found.claims.lower_bound_s) == (
        plan.claims.objective_s,
        plan.claims.lower_bound_s,
    )
    write_plan(found, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert again.config == found.config
    spoilt = replace(again, config=replace(again.config, bucket_bytes=0, exchange_streams=1))
    assert any("peak_memory_bytes" in problem for problem in verify(spoilt))


def test_pins_decide_and_what_does_not_fit_is_said() -> None:
    asked, plan = plan_of(overlaps=True)
    pinned = replace(asked, pins=Pins(bucket_bytes=300, exchange_streams=3))
    found = with_exchange(pinned, plan, simulated, UNLIMITED)
    assert (found.config.bucket_bytes, found.config.exchange_streams) == (300, 3)
    assert with_exchange(replace(asked, pins=Pins(bucket_bytes=0)), plan, simulated, UNLIMITED) is plan
    tight = replace(pinned, memory_limit_bytes=max(found.claims.peak_memory_bytes) - 1)
    with pytest.raises(InfeasibleError, match="does not fit"):
        with_exchange(tight, plan, simulated, UNLIMITED)
    assert with_exchange(replace(tight, pins=Pins(), memory_limit_bytes=1), plan, simulated, UNLIMITED) is plan


def test_there_is_no_time_for_it_after_the_budget() -> None:
    asked, plan = plan_of(overlaps=True)
    assert with_exchange(asked, plan, simulated, Budget.of(0.0)) is plan


def test_a_search_ends_with_it() -> None:
    asked = replace(request(2, TRAINING, model=MODEL), pins=PINNED)
    plain = search(replace(asked, pins=replace(PINNED, bucket_bytes=0)), simulate=simulated, budget=Budget.of(60)).plan
    found = search(asked, simulate=simulated, budget=Budget.of(60)).plan
    assert (plain.config.bucket_bytes, found.config.bucket_bytes > 0) == (0, True)
    assert simulate(program_of(found)).step_time_s < simulate(program_of(plain)).step_time_s
    assert plain.layout == found.layout


@pytest.mark.parametrize(("nbytes", "streams"), [(-1, 1), (8, 0), (0, 2)])
def test_an_impossible_exchange_is_refused(nbytes: int, streams: int) -> None:
    with pytest.raises(InputError, match="config: "):
        PlanConfig(2, 1, 1, 2, 1, config_of(TRAINING, dp=2).schedule, bucket_bytes=nbytes, exchange_streams=streams)
