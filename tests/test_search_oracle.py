"""A seeded part of the oracle of the whole search: `python -m tests.campaigns oracle`."""

from __future__ import annotations

import pytest

from tests.campaigns import oracle
from tests.support.long_parameters import long_but
from tests.support.random_requests import random_case


@pytest.mark.slow
@pytest.mark.parametrize("seed", long_but([9000, 9200, 184, 309, 38], 0))
def test_the_search_agrees_with_every_plan_listed(seed: int) -> None:
    assert findings(seed, 5) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_search_agrees_in_every_respect_with_every_plan_listed() -> None:
    several = (6, 9000), (8, 9200), (1, 151), (1, 184), (1, 57), (1, 247), (1, 309), (1, 38), (1, 63)
    outcomes = [oracle.run(count, seed=seed, best=5) for count, seed in several]
    assert [failure for outcome in outcomes for failure in outcome.failures] == []
    degrees = "dp", "tp", "pp", "micro-batch", "schedule", "laps", "ep", "order", "offload"
    for knob in (*degrees, "signatures", "recompute", "zero", "saving", "tight limit", "half precision", "certificate"):
        assert sum(outcome.coverage[knob] for outcome in outcomes), knob


def findings(seed: int, best: int) -> list[str]:
    return list(oracle.check(random_case(seed), seed, [], best))


@pytest.mark.long
def test_without_a_gap_no_part_of_the_objective_is_negligible() -> None:
    """Two stages that compute again: the best layout is less than a thousandth better than that of the even paths."""
    assert findings(205, 0) == []


@pytest.mark.parametrize("seed", long_but([95, 214, 400]))
def test_what_overlaps_is_simulated_in_other_layouts_too(seed: int) -> None:
    """One objective, but another step: what a collective is waited for depends on ops that take next to nothing."""
    assert findings(seed, oracle.BEST) == []
