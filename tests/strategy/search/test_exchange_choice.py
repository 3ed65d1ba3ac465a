"""What the search decides about the exchange of gradients, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.beside import beside
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
    steps = [9.0, 7.0, 5.0, 4.0, 4.5, 8.0]
    assert list(_rounds(6, steps.__getitem__)) == [[1, 4], [3, 5], [2]]
    assert list(_rounds(6, float)) == [[1, 4], [0, 2]]
    assert list(_rounds(6, lambda i: 1.0)) == [[1, 4]]
    assert list(_rounds(6, lambda i: max(i, 4.0))) == [[1, 4]]
    assert list(_rounds(6, lambda i: -i)) == [[1, 4], [3, 5]]
    assert list(_rounds(1, lambda i: 1.0)) == [[0]]
    assert list(_rounds(0, lambda i: 1.0)) == []


def test_where_the_first_two_gain_nothing_there_is_no_looking_further(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plan = plan_of(overlaps=True)
    looked_at: list[int] = []

    def hardly_faster(*args: Any) -> float:
        looked_at.append(args[1].bucket_bytes)
        return plan.claims.step_time_s * 0.9995

    monkeypatch.setattr(exchange_choice, "_step_s", hardly_faster)
    monkeypatch.setattr(exchange_choice, "beside", attempts)
    assert with_exchange(asked, plan, simulated, UNLIMITED) is plan
    assert len(looked_at) == 2


def attempts(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """`beside` in this process alone."""
    return [found for task in tasks for found in beside([task])]


def test_of_those_that_are_faster_the_fastest_that_fits_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where memory lies is looked at of no other: of the best size on one stream, beside the step on two."""
    asked, plan = plan_of(overlaps=True)
    best = with_exchange(asked, plan, simulated, UNLIMITED)
    laid_out: list[PlanConfig] = []
    exchanging = exchange_choice._exchanging

    def all_but_the_fastest(*args: Any) -> Plan:
        laid_out.append(args[2])
        if args[2] == best.config:
            raise InfeasibleError("the layout does not fit")
        return exchanging(*args)

    monkeypatch.setattr(exchange_choice, "_exchanging", all_but_the_fastest)
    monkeypatch.setattr(exchange_choice, "beside", attempts)
    found = with_exchange(asked, plan, simulated, UNLIMITED)
    assert laid_out == [found.config, best.config]
    assert (found.config.exchange_streams, best.config.exchange_streams) == (1, 2)
    assert best.claims.step_time_s <= found.claims.step_time_s < plan.claims.step_time_s


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
