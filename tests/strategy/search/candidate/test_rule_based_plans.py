"""Rule-based plans: one candidate per mesh, tensor parallelism first where memory is scarce."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError
from strategy.passes.training import Training
from strategy.search.candidate.rule_based_plans import likely_first, plan_by_rule, solved_by_rule
from strategy.space.candidates import candidates_of
from strategy.space.request import Request
from tests.support.small_plans import config_of, request, simulated


@pytest.fixture(scope="module")
def asked() -> Request:
    return request(2, Training(global_batch=4))


def test_one_candidate_per_mesh(asked: Request) -> None:
    found = solved_by_rule(asked, list(candidates_of(asked)), 10, UNLIMITED)
    meshes = [(one.config.pp, one.config.dp, one.config.tp) for one in found]
    assert sorted(meshes) == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert solved_by_rule(asked, list(candidates_of(asked)), 0, UNLIMITED) == []
    assert solved_by_rule(asked, list(candidates_of(asked)), 1, Budget(-math.inf)) == []


def test_where_the_state_does_not_fit_it_is_split(asked: Request) -> None:
    scarce = replace(asked, memory_limit_bytes=asked.state_bytes)
    first, *_, last = likely_first(scarce, list(candidates_of(scarce)))
    assert first.tp * first.pp == 2
    assert last.dp == 2


def test_what_does_not_fit_is_refused(asked: Request) -> None:
    config = config_of(Training(global_batch=4), tp=2)
    with pytest.raises(InfeasibleError, match="the smallest limit that works is"):
        plan_by_rule(replace(asked, memory_limit_bytes=1000), config, config.axes, simulated)
