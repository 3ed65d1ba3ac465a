"""Replayed bound: a certificate proves the bound that its plan claims, and a wrong one proves nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from strategy.base.budget import UNLIMITED
from strategy.base.errors import CertificateError
from strategy.bounds.candidate_replay import CandidatesReplayed
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.plan.replayed_bound import replayed_bound
from strategy.search.search import search
from strategy.space.request import Pins
from tests.support.small_plans import exchange_left_alone, request, simulated

MLP = MlpConfig(layers=2, features=8, width=16, classes=4)


@cache
@exchange_left_alone()
def certified_plan() -> Plan:
    """Of one device, whose candidates are solved on the whole model."""
    asked = replace(request(1, Training(4), model=MLP), pins=Pins(num_micro_batches=1), gap=0.01)
    plan = search(asked, simulate=simulated, budget=UNLIMITED, simulated=1).plan
    assert plan.certificate is not None
    return plan


def test_a_plan_without_certificate_claims_its_bound() -> None:
    assert replayed_bound(replace(certified_plan(), certificate=None)) is None


def test_what_is_replayed_is_the_bound_that_the_plan_claims() -> None:
    plan = certified_plan()
    found = replayed_bound(plan)
    assert isinstance(found, CandidatesReplayed)
    assert found.bound_ns == int(plan.claims.lower_bound_s * 1e9) > 0
    raised = replace(plan.claims, lower_bound_s=plan.claims.objective_s * 1.01)
    with pytest.raises(CertificateError):
        replayed_bound(plan.claiming(raised))


@pytest.mark.parametrize(
    ("certificate", "said"),
    [
        ({"kind": "candidates", "version": 99}, r"not known \(got 'candidates 99', expected candidates "),
        ({"kind": "candidates"}, "not a certificate of a bound: .*version"),
        ({"version": 99}, r"not known \(got 99, expected \d+\)"),
        ({"kind": "boxes"}, "not a certificate of a bound: .*version"),
    ],
)
def test_a_certificate_is_read_as_the_kind_that_it_says_it_is(certificate: dict[str, object], said: str) -> None:
    with pytest.raises(CertificateError, match=said):
        replayed_bound(certified_plan().claiming(certificate=certificate))
