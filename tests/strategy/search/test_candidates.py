"""Candidates: every division of the devices, none that the pins exclude, and a bound that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.passes.training import Training
from strategy.search.candidates import Pins, Request, candidates_of, quick_bound_ns, space_log10
from strategy.search.verdict import solve_candidate
from tests.small_plans import request


@pytest.fixture(scope="module")
def asked() -> Request:
    return request(2, Training(global_batch=4))


def test_candidates_use_all_devices(asked: Request) -> None:
    for config in candidates_of(asked):
        assert config.dp * config.tp * config.pp == 2
        assert config.micro_batch * config.num_micro_batches * config.dp == 4


def test_pins_leave_what_satisfies_them(asked: Request) -> None:
    pinned = replace(asked, pins=Pins(tp=2, micro_batch=1))
    wanted = [config for config in candidates_of(asked) if (config.tp, config.micro_batch) == (2, 1)]
    assert list(candidates_of(pinned)) == wanted
    assert len(wanted) == 1
    assert 0 < space_log10(pinned) < space_log10(asked)
    assert space_log10(replace(asked, pins=Pins(dp=3))) == 0


def test_the_quick_bound_is_below_what_is_solved(asked: Request) -> None:
    for config in candidates_of(asked):
        solved = solve_candidate(asked, config, rules=config.axes)
        assert solved is not None
        assert 0 < quick_bound_ns(asked, config) <= solved.bound_ns
