"""The loop's figures on made-up samples: what is chosen, how far off it was, how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from experiments.loop import loop
from experiments.loop.contenders import Contender, global_batch
from experiments.loop.loop import errors, half_widths, loss_difference, regret
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.cost.calibrate import Calibration, calibrate
from strategy.cost.measurement import Features, Measurement
from strategy.passes.training import Training
from strategy.plan.verify import verify
from strategy.search.search import search
from strategy.search.search_result import SearchResult
from strategy.space.request import Request
from tests.mpi.plans import MODEL, small_plan
from tests.support.long_parameters import long_but
from tests.support.small_plans import cluster, exchange_left_alone, request


def contender(name: str, predicted_s: float, samples_s: Sequence[float], refined_s: float = 1.0) -> Contender:
    plan = small_plan("mixed")
    claimed = replace(plan, claims=replace(plan.claims, step_time_s=predicted_s))
    return Contender(name, claimed, samples_s=tuple(samples_s), refined_s=refined_s)


def test_errors_are_relative_to_the_measurement_and_averaged() -> None:
    found = [contender("a", 1.0, [2.0], refined_s=1.8), contender("b", 3.0, [2.0], refined_s=2.4)]
    assert errors(found, [c.measured_s for c in found]) == pytest.approx((0.5, 0.15))


def test_regret_is_against_the_fastest() -> None:
    found = [contender(name, 1.0, [1.0]) for name in "abc"]
    assert regret(found, "a", [1.1, 1.0, 4.0]) == pytest.approx(0.1)
    assert regret(found, "b", [1.1, 1.0, 4.0]) == 0


def test_measured_is_the_median() -> None:
    assert contender("a", 1.0, [1.0, 9.0, 2.0]).measured_s == 2.0


def test_without_noise_every_figure_is_sure() -> None:
    found = [contender("a", 1.0, [2.0] * 5), contender("b", 1.0, [3.0] * 5)]
    assert half_widths(found, "a") == {"error_before_refine": 0, "error_after_refine": 0, "regret": 0}


def test_half_widths_are_those_of_a_bootstrap() -> None:
    """Against NumPy's percentiles of as many medians as one likes."""
    rng = np.random.default_rng(3)
    samples = [rng.normal(center, 0.1, 15) for center in (2.0, 2.05)]
    found = [
        contender("a", 1.0, samples[0].tolist(), refined_s=1.5),
        contender("b", 1.2, samples[1].tolist(), refined_s=1.6),
    ]
    medians = np.array([np.median(rng.choice(s, (20_000, s.size)), axis=1) for s in samples])
    expected = {
        "error_before_refine": (1 - np.array([1.0, 1.2])[:, None] / medians).mean(axis=0),
        "error_after_refine": (1 - np.array([1.5, 1.6])[:, None] / medians).mean(axis=0),
        "regret": medians[1] / medians.min(axis=0) - 1,
    }
    widths = half_widths(found, "b")
    for name, drawn in expected.items():
        low, high = np.quantile(drawn, (0.025, 0.975))
        assert widths[name] == pytest.approx((high - low) / 2, rel=0.2), name
    assert half_widths(found, "b") == widths


def test_losses_are_compared_at_the_same_step() -> None:
    found = [replace(contender("a", 1, [1]), losses=(5.0, 4.0)), replace(contender("b", 1, [1]), losses=(5.1, 3.7))]
    assert loss_difference(found) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="argument 2"):
        loss_difference([found[0], replace(found[1], losses=(5.1,))])


def rows(seconds: float, source: str) -> tuple[Measurement, ...]:
    return tuple(Measurement(Features("matmul", flop, 10**4), seconds, 5, source) for flop in (10**5, 10**6))


def test_a_plan_is_predicted_without_its_own_run() -> None:
    base: Calibration = calibrate(rows(1e-4, "profile"), cluster(2))
    own, others, slower = rows(7e-3, "own"), rows(1e-3, "other"), rows(2e-3, "other")

    def predict(mine: tuple[Measurement, ...], theirs: tuple[Measurement, ...]) -> float:
        found = [replace(contender("a", 1, [1]), rows=mine), replace(contender("b", 1, [1]), rows=theirs)]
        return loop._predict_unseen(found[0], found, base, cluster(2))

    assert predict(own, others) == predict(rows(1e-6, "own"), others)
    assert predict(own, slower) > 1.1 * predict(own, others)


@cache
@exchange_left_alone()
def answer(ranks: int) -> tuple[Request, SearchResult]:
    asked = request(ranks, Training(global_batch(ranks)), model=replace(MODEL, layers=3))
    return asked, search(asked, simulate=simulated_step, budget=Budget.of(20))


@cache
def contenders(ranks: int) -> Sequence[Contender]:
    return loop._contenders(*answer(ranks))


@pytest.mark.parametrize("ranks", long_but([2, 3]))
def test_the_competitors_are_legal_and_all_different(ranks: int) -> None:
    _, first = answer(ranks)
    found = contenders(ranks)
    assert len(found) >= 4
    assert len({c.name for c in found}) == len({c.plan.plan_hash for c in found}) == len(found)
    assert found[0].plan == first.plan
    for plan in (c.plan for c in found):
        assert verify(plan) == []
        assert plan.ranks == ranks
    degrees = {(c.plan.config.dp, c.plan.config.tp, c.plan.config.pp) for c in found}
    assert degrees >= {(ranks, 1, 1), (1, ranks, 1)}
    assert any(pp > 1 for _, _, pp in degrees)


@pytest.mark.long
def test_the_chosen_plan_is_the_fastest_that_was_simulated() -> None:
    _, first = answer(2)
    others = [c.plan.claims.step_time_s for c in contenders(2)]
    assert first.plan.claims.step_time_s <= min(others)


@pytest.mark.parametrize(("ranks", "batch"), [(1, 16), (2, 16), (3, 18), (5, 20), (6, 18), (8, 16), (24, 24)])
def test_every_rank_has_its_share_of_the_batch(ranks: int, batch: int) -> None:
    assert global_batch(ranks) == batch
