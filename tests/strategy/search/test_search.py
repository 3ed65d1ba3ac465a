"""The search: deterministic, consistent, bound by its pins, never worse than the rules."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import strategy.search.search
from strategy.base.beside import beside
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training
from strategy.plan.plan import plan_text
from strategy.plan.verify import verify
from strategy.sbp.sbp import B, Split
from strategy.search.candidate.candidate_solve import CandidateBound, examine
from strategy.search.candidate.rule_based_plans import plan_by_rule
from strategy.search.search import SINGLE_SHARE, search
from strategy.search.search_result import SearchResult
from strategy.space.candidates import candidates_of, divisions
from strategy.space.request import Pins, Request
from tests.support.long_parameters import long_but
from tests.support.small_plans import exchange_left_alone, request, simulated


def found_with(asked: Request) -> SearchResult:
    return search(asked, simulate=simulated, budget=Budget.of(120))


@pytest.fixture(scope="module")
def asked() -> Request:
    return request(2, Training(global_batch=4))


@pytest.fixture(scope="module")
def answer(asked: Request) -> SearchResult:
    return found_with(asked)


def test_the_answer_is_a_legal_plan_and_says_so(answer: SearchResult) -> None:
    assert verify(answer.plan) == []
    claims = answer.plan.claims
    assert claims.status == str(answer.status)
    assert 0 < claims.lower_bound_s <= claims.objective_s
    assert claims.gap == pytest.approx((claims.objective_s - claims.lower_bound_s) / claims.objective_s)
    assert (claims.gap == 0) == (claims.status == "optimal")
    assert max(claims.peak_memory_bytes) <= claims.memory_limit_bytes
    assert all(time_s >= claims.step_time_s for _, time_s in answer.runners_up)


@pytest.mark.long
def test_same_request_same_bytes(asked: Request, answer: SearchResult) -> None:
    assert plan_text(found_with(asked).plan) == plan_text(answer.plan)


@pytest.mark.parametrize("every", long_but([3, 1], 0))
def test_never_worse_than_the_rules(asked: Request, answer: SearchResult, every: int) -> None:
    configs = list(candidates_of(replace(asked, pins=Pins(recompute=Recompute.NONE, offload=Offload.NONE))))
    for config in configs[::every]:
        try:
            rule_based = plan_by_rule(asked, config, config.axes, simulated)
        except InfeasibleError:
            continue
        assert answer.plan.claims.lower_bound_s <= rule_based.claims.objective_s
        if config == answer.plan.config:
            assert answer.plan.claims.objective_s <= rule_based.claims.objective_s


@exchange_left_alone()
def test_pins_hold(asked: Request) -> None:
    pins = Pins(dp=1, tp=2, pp=1, micro_batch=2, schedule=Schedule.GPIPE, layouts={"*.fc1.weight": (B, Split(1))})
    plan = found_with(replace(asked, pins=pins)).plan
    config = plan.config
    assert (config.dp, config.tp, config.pp, config.micro_batch, config.schedule) == (1, 2, 1, 2, Schedule.GPIPE)
    assert plan.layout.signatures["layers.1.mlp.fc1.weight:adamw"].updates[0] == (B, Split(1))
    with pytest.raises(InfeasibleError, match="has dp = 3;"):
        found_with(replace(asked, pins=Pins(dp=3)))
    with pytest.raises(InputError, match="pin matches no value"):
        found_with(replace(asked, pins=Pins(dp=2, layouts={"nothing": (B, B)})))


@pytest.mark.parametrize("pins", [Pins(dp=1, tp=2, pp=1, micro_batch=2), Pins(tp=2)])
@exchange_left_alone()
def test_a_single_candidate_gets_a_part_of_the_time(
    asked: Request, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(asked, pins=pins)
    left_s: list[float] = []

    def noted(*args: Any, gap: float) -> CandidateBound:
        left_s.append(args[3].left_s())
        return examine(*args, gap=gap)

    monkeypatch.setattr(strategy.search.search, "examine", noted)
    assert found_with(found).status == "optimal"
    alone = len(list(divisions(found))) == 1
    assert (max(left_s) <= SINGLE_SHARE * 120) is alone
    assert len(left_s) == 1 or not alone


@pytest.mark.long
@pytest.mark.parametrize("together", [True, False])
@exchange_left_alone()
def test_a_gap_is_kept_before_it_is_closed(asked: Request, together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time for the rest the answer is within the gap; one by one and two at a time, by bounds that hold."""
    best = found_with(replace(asked, gap=0.0)).plan.claims.objective_s
    monkeypatch.setattr(strategy.search.search, "EXACT_SHARE", 0.0)
    monkeypatch.setattr(strategy.search.search, "MANY_OPS", 1 if together else 10**9)
    for gap in (0.2, 0.02):
        claims = found_with(replace(asked, gap=gap)).plan.claims
        assert claims.lower_bound_s <= best * (1 + 1e-9)
        assert claims.gap <= gap
        assert best * (1 - 1e-9) <= claims.objective_s


@exchange_left_alone()
def test_two_are_solved_side_by_side_though_others_wait_for_the_first(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What saves more memory of the same degrees is next by its bound, but waits for what is told of the first."""
    together: list[list[object]] = []

    def noted(tasks: list[Any]) -> list[Any]:
        together.append([(task.args[1].mesh, task.args[1].micro_batch) for task in tasks if task.func is examine])
        return beside(tasks)

    monkeypatch.setattr(strategy.search.search, "beside", noted)
    monkeypatch.setattr(strategy.search.search, "MANY_OPS", 1)
    found_with(asked)
    assert len(set(together[0])) == 2


@pytest.mark.long
@exchange_left_alone()
def test_without_a_gap_all_of_the_time_is_for_an_exact_answer(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share that closes what is left of a gap is of no account then."""
    monkeypatch.setattr(strategy.search.search, "EXACT_SHARE", 0.0)
    assert found_with(replace(asked, gap=0.0)).status == "optimal"


@exchange_left_alone()
def test_a_stage_of_zero_is_pinned(asked: Request) -> None:
    plan = found_with(replace(asked, pins=Pins(dp=2, zero_stage=3, zero_min_size=9))).plan
    assert (plan.config.zero_stage, plan.config.zero_min_size) == (3, 9)
    assert verify(plan) == []
    with pytest.raises(InfeasibleError, match="has dp = 1 and zero_stage = 1:"):
        found_with(replace(asked, pins=Pins(dp=1, zero_stage=1)))


def test_interrupted_it_ends_with_the_best_so_far(asked: Request) -> None:
    seen: list[int] = []

    def stop(number: int, *_: object) -> None:
        seen.append(number)
        if len(seen) == 2:
            raise KeyboardInterrupt

    found = search(asked, simulate=simulated, budget=Budget.of(120), watch=stop)
    assert found.interrupted
    assert found.status == "limit"
    assert verify(found.plan) == []
    assert found.plan.claims.lower_bound_s > 0


@pytest.mark.parametrize(
    ("work", "signals"),
    long_but(
        itertools.product(["certified_candidates", "fastest_neighbour", "with_exchange", "simulated_step"], [1, 2]),
        3,
    ),
)
def test_a_signal_after_solving_leaves_the_answer(
    work: str, signals: int, asked: Request, answer: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates, neighbours and exchanges end by the first; the second one leaves them where they are."""
    left = [signals]

    def interrupted(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            while left[0]:
                left[0] -= 1
                signal.raise_signal(signal.SIGINT)
            return do(*args, **named)

        return call

    if work == "simulated_step":
        if signals == 2:
            with pytest.raises(KeyboardInterrupt):  # there is no plan yet
                search(asked, simulate=interrupted(simulated), budget=Budget.of(120))
            return
        found = search(asked, simulate=interrupted(simulated), budget=Budget.of(120))
    else:
        module = strategy.search.search
        monkeypatch.setattr(module, work, interrupted(getattr(module, work)))
        found = search(asked, simulate=simulated, budget=Budget.of(120))
    assert left == [0]
    assert found.interrupted
    assert verify(found.plan) == []
    assert found.plan.claims.lower_bound_s <= answer.plan.claims.lower_bound_s


def test_what_solves_a_single_candidate_is_interrupted_with_a_plan(
    asked: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(strategy.search.search, "_solve_each", interrupted)
    pins = Pins(dp=2, tp=1, pp=1, micro_batch=1, recompute=Recompute.NONE, zero_stage=0)
    found = found_with(replace(asked, pins=pins))
    assert (found.interrupted, found.status) == (True, "limit")
    assert verify(found.plan) == []


@exchange_left_alone()
def test_owners_are_searched_with_every_degree_pinned(asked: Request) -> None:
    pins = Pins(dp=2, tp=1, pp=1, micro_batch=1, zero_stage=1, zero_owner=True, zero_min_size=9)
    config = found_with(replace(asked, pins=pins)).plan.config
    assert (config.zero_stage, config.zero_owner) == (1, True)
