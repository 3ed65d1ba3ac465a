"""Errors of memory: margins hold as often as they say, scales follow frameworks, and few groups are drawn to all."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from strategy.closed_form.calibration import shipped
from strategy.closed_form.interval import Residual
from strategy.closed_form.memory_error import LEAST, MOST, MemoryErrors, memory_errors
from tests.strategy.closed_form.conftest import BASE


def residuals(framework: str, source: str, sigma: float, count: int, seed: int) -> list[Residual]:
    """Runs, each a group of its own, whose predictions are off by a normal share of so much."""
    draw = random.Random(seed)
    job = replace(BASE, framework=framework)
    return [Residual(job, source, (source, n), off := draw.gauss(0, sigma), 2 * off) for n in range(count)]


SURE = residuals("megatron-core", "one", 0.02, 400, 1)
UNSURE = residuals("torchtitan", "two", 0.1, 400, 2)
FOUND = memory_errors([*SURE, *UNSURE])


@pytest.mark.parametrize("probability", [0.8, 0.9, 0.95])
def test_a_margin_suffices_as_often_as_it_says_on_runs_that_it_has_not_seen(probability: float) -> None:
    for framework, sigma in (("megatron-core", 0.02), ("torchtitan", 0.1)):
        margin = math.log(FOUND.margin(framework, probability))
        fresh = residuals(framework, "fresh", sigma, 4000, 3)
        share = sum(-one.near <= margin for one in fresh) / len(fresh)
        assert share == pytest.approx(probability, abs=0.03)


def test_a_framework_that_was_not_seen_takes_the_errors_without_the_source() -> None:
    assert FOUND.margin("", 0.9) > FOUND.margin("torchtitan", 0.9) > FOUND.margin("megatron-core", 0.9) > 1
    assert FOUND.margin("", 0.9) == FOUND.margin("nanotron", 0.9)


def test_few_groups_are_drawn_towards_all() -> None:
    few = memory_errors([*UNSURE, *residuals("megatron-core", "one", 0.001, 2, 4)])
    assert few.scales["megatron-core"] > 0.3 * few.scales["torchtitan"]
    assert FOUND.scales["megatron-core"] < 0.3 * FOUND.scales["torchtitan"]


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan", ""])
def test_a_margin_has_the_probability_that_it_is_for(framework: str) -> None:
    errors = shipped().memory
    assert errors is not None
    margins = [errors.margin(framework, percent / 100) for percent in range(50, 100)]
    assert margins == sorted(margins)
    assert margins[0] >= 1
    for percent, margin in zip(range(50, 100), margins, strict=True):
        assert errors.probability(framework, margin) >= percent / 100 - 1e-9
    assert errors.probability(framework, 100.0) == MOST
    assert errors.probability(framework, 0.0) == errors.probability(framework, -1.0) == 0
    assert errors.probability(framework, 0.1) < LEAST


def test_percentiles_are_of_equal_sources() -> None:
    """A source with one run weighs as much as one with a hundred."""
    many, one = residuals("megatron-core", "one", 0.01, 100, 5), residuals("megatron-core", "two", 0.01, 1, 6)
    far_off = [replace(one[0], near=-1.0, far=-1.0)]
    found = memory_errors([*many, *far_off])
    assert isinstance(found, MemoryErrors)
    assert found.far[60] == pytest.approx(1.0)
    assert found.far[40] < 0.1
