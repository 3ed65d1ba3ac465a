"""Candidates: every division of the devices, none that the pins exclude, and a bound that holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.layout.config import Recompute
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.space.candidates import (
    CHEAPEST_FIRST,
    Pins,
    Request,
    candidates_of,
    free_rules,
    space_log10,
    with_less_memory,
)
from tests.support.small_plans import request


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


def test_stage_3_is_tried_where_memory_is_scarce(asked: Request) -> None:
    assert {config.zero_stage for config in candidates_of(asked)} == {0}
    for config in candidates_of(asked):
        smaller = list(with_less_memory(asked, config))
        assert {c.zero_stage for c in smaller} == ({0, 3} if config.dp > 1 else {0})
        assert {c.recompute for c in smaller if c.zero_stage == 0} == set(CHEAPEST_FIRST)
        assert config not in smaller
    pinned = replace(asked, pins=Pins(zero_stage=0, recompute=Recompute.NONE))
    assert [again for config in candidates_of(pinned) for again in with_less_memory(pinned, config)] == []


def test_a_pinned_stage_needs_ranks_to_share_with(asked: Request) -> None:
    found = list(candidates_of(replace(asked, pins=Pins(zero_stage=2, zero_min_size=7))))
    assert {(c.dp, c.zero_stage, c.zero_min_size) for c in found} == {(2, 2, 7)}
    assert list(candidates_of(replace(asked, pins=Pins(dp=1, zero_stage=1)))) == []
    assert all(c.zero_owner for c in candidates_of(replace(asked, pins=Pins(zero_stage=2, zero_owner=True))))
    with pytest.raises(InputError, match=r"zero_owner: nothing is shared out.*pin zero_stage"):
        list(candidates_of(replace(asked, pins=Pins(zero_owner=True))))
    assert list(candidates_of(replace(asked, pins=Pins(zero_stage=0)))) == list(candidates_of(asked))


def test_what_is_shared_out_costs_no_less_than_what_is_gathered_once(asked: Request) -> None:
    """The bound of a candidate without ZeRO holds for its stage 3, which is why that may be left out."""
    plenty = replace(asked, pins=Pins(dp=2, tp=1, pp=1, zero_min_size=9, recompute=Recompute.NONE))
    for config in candidates_of(plenty):
        for again in with_less_memory(plenty, config):
            free, shared = (solve_candidate(plenty, c, rules=free_rules(c)) for c in (config, again))
            assert free is not None
            assert shared is not None
            assert free.bound_ns <= shared.objective_ns
