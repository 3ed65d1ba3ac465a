"""Certificates of candidates: the bound is what is proved; there is none where certificates have no words for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.bounds.candidate_replay import replay_candidates
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training
from strategy.sbp.sbp import Split
from strategy.search.candidate.candidate_solve import examine
from strategy.search.certify_candidates import CandidateProofs, certified_candidates
from strategy.search.search import _Known, search
from strategy.space.candidate_space import free_rules
from strategy.space.candidates import candidates_of
from strategy.space.deduce import Deduction
from strategy.space.request import Pins, Request
from tests.support.small_plans import request, simulated

UNKNOWN_NS = 10**12


@pytest.fixture(scope="module")
def asked() -> Request:
    return replace(request(2, Training(global_batch=4)), pins=Pins(recompute=Recompute.NONE))


def test_without_proofs_the_bound_is_that_of_closed_forms(asked: Request) -> None:
    certificate, proved_ns = certified_candidates(asked, CandidateProofs(), UNKNOWN_NS)
    configs = list(candidates_of(asked))
    assert proved_ns == min(quick_bound_ns(asked, config) for config in configs)
    assert certificate is not None
    assert certificate.bounds == ()
    assert replay_candidates(asked, certificate, proved_ns, configs[0]).by_work == len(configs)


@pytest.mark.long
def test_what_one_candidate_lacks_all_lack(asked: Request) -> None:
    """Each but one has a proof; the bound is what closed forms say of that one, or another's if that is less."""
    asked = replace(asked, pins=replace(asked.pins, micro_batch=1, schedule=Schedule.ONE_F_ONE_B))
    proofs, configs = CandidateProofs(), list(candidates_of(asked))
    dearest = max(configs, key=lambda config: quick_bound_ns(asked, config))
    for config in configs:
        if (config.dp, config.zero_stage) != (dearest.dp, 0) or config.tp != dearest.tp or config.pp != dearest.pp:
            proofs.learn(config, examine(asked, config, free_rules(config), UNLIMITED, None))
    certificate, proved_ns = certified_candidates(asked, proofs, UNKNOWN_NS)
    assert certificate is not None
    assert min(quick_bound_ns(asked, config) for config in configs) < proved_ns < UNKNOWN_NS
    found = replay_candidates(asked, certificate, proved_ns, configs[0])
    assert found.by_proof > 0


def test_of_several_proofs_the_better_is_kept(asked: Request) -> None:
    proofs, config = CandidateProofs(), next(candidates_of(asked))
    good = examine(asked, config, free_rules(config), Budget.of(20), None)
    worse = examine(asked, config, free_rules(config), Budget.of(20), None, gap=0.5)
    for one in (good, replace(worse, free_bound_ns=good.free_bound_ns - 1, bound_ns=(good.bound_ns or 0) - 1)):
        proofs.learn(config, one)
    assert proofs.free[config][1] is good.free_why
    assert proofs.own[config][1] is good.why


@pytest.mark.parametrize("pins", [Pins(layouts={"token": (Split(0),)}), Pins(tiles=2)], ids=str)
def test_there_is_no_certificate_of_other_pins(asked: Request, pins: Pins) -> None:
    assert certified_candidates(replace(asked, pins=pins), CandidateProofs(), UNKNOWN_NS) == (None, UNKNOWN_NS)


def test_of_what_is_pinned_to_the_host_there_is_one(asked: Request) -> None:
    pins = Pins(dp=2, micro_batch=2, recompute=Recompute.NONE, offload=Offload.OPTIMIZER)
    asked, proofs = replace(asked, pins=pins), CandidateProofs()
    configs = list(candidates_of(asked))
    for config in configs:
        proofs.learn(config, examine(asked, config, free_rules(config), UNLIMITED, None))
    certificate, proved_ns = certified_candidates(asked, proofs, UNKNOWN_NS)
    assert certificate is not None
    assert min(quick_bound_ns(asked, config) for config in configs) < proved_ns < UNKNOWN_NS
    assert replay_candidates(asked, certificate, proved_ns, configs[0]).by_proof > 0


def test_deduced_plans_have_none(asked: Request) -> None:
    deduced = replace(asked, deduction=Deduction.MATCH_ALL, pins=Pins(tp=2, micro_batch=4))
    assert search(deduced, simulate=simulated, budget=Budget.of(60), simulated=1).plan.certificate is None


def test_what_saves_least_is_known_in_any_order(asked: Request) -> None:
    """Even if a quick bound of what saves more were less."""
    configs = [config for config in candidates_of(replace(asked, pins=Pins(dp=2, micro_batch=2)))]
    for order in (configs, configs[::-1]):
        known = _Known(derives=True)
        known.begin(dict.fromkeys(order, 1))
        assert {(one.recompute, one.zero_stage) for one in known.alone} == {(Recompute.NONE, 0)}
