"""Where nothing but memory speaks against a cut, hosts are let in to hold some of it; bounds are of that space."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import CertificateError, OutOfTimeError
from strategy.bounds.certificate import certificate_of
from strategy.bounds.configurations import MeshGroup
from strategy.bounds.replay import replay
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.replayed_bound import replayed_bound
from strategy.plan.verify import verify
from strategy.search import deep_search
from strategy.search.box import Box
from strategy.search.hosted_cuts import KNOWN, MOST, crowded_boxes, is_like_one, waits_on_hosts, with_hosts
from strategy.search.search import search
from strategy.space.candidates import listed
from strategy.space.request import Pins, Request
from tests.support.small_plans import simulated

ONE_STAGE = Pins(tp=1, pp=1, recompute=Recompute.FULL, zero_stage=3)


def asked(limit: int, pins: Pins = ONE_STAGE) -> Request:
    """Of eight layers on two nodes, of which so many bytes are for each device."""
    model = GptConfig(layers=8, width=512, heads=8, sequence=256, vocabulary=1024)
    cost = CostModel(replace(find_cluster("dgx-a100"), nodes=2), {})
    return Request("deep", model, Training(64, precision=Precision.BF16), cost, limit, pins)


def box(dp: int, bound_ns: float, *, offload: Offload = Offload.NONE, level: int = KNOWN, proposed: bool = True) -> Box:
    config = PlanConfig(dp, 1, 2, 1, 4, Schedule.ONE_F_ONE_B, recompute=Recompute.FULL, offload=offload)
    found = Box((config,), [bound_ns], level=level)
    found.is_proposed = proposed
    return found


def test_boxes_far_below_what_fits_that_are_not_likely_to_fit_are_crowded() -> None:
    """The least first; not those of which little is known, that may fit yet, or whose cut waits on hosts already."""
    crowded, other = box(2, 70), box(4, 60)
    unknown, near, hosted, closed = box(8, 50, level=KNOWN - 1), box(16, 95), box(32, 50), box(64, math.inf)
    may_fit = box(128, 50, proposed=False)
    boxes = [crowded, other, unknown, near, hosted, closed, may_fit, box(32, 80, offload=Offload.ALL)]
    assert crowded_boxes(boxes, 100) == [other, crowded]
    may_fit.promise = None, 120.0
    assert crowded_boxes(boxes, 100) == [may_fit, other, crowded]
    assert len(crowded_boxes([box(2**i, 50) for i in range(MOST + 2)], 100)) == MOST


def test_hosts_are_open_for_cuts_that_are_named_alone() -> None:
    request = asked(2**30, replace(ONE_STAGE, schedule=Schedule.ONE_F_ONE_B))
    configs = [config for group in listed(request) for config in group]
    assert {config.offload for config in configs} == {Offload.NONE}
    one, *_ = [config for config in configs if config.micro_batch == 1]
    crowded = [Box((one,), [1.0])]
    wider = with_hosts(request, crowded)
    assert with_hosts(wider, crowded) == wider
    found = [config for group in listed(wider) for config in group]
    assert [config for config in found if config.offload is Offload.NONE] == configs
    hosted = [config for config in found if config.offload is not Offload.NONE]
    assert {config.cut for config in hosted} == {one.cut}
    assert {config.offload for config in hosted} == set(Offload) - {Offload.NONE}
    assert all(waits_on_hosts(config, crowded) for config in hosted)
    assert not any(waits_on_hosts(config, crowded) for config in configs)
    assert any(is_like_one(Box((config,), [1.0]), crowded) for config in hosted)
    other = replace(hosted[0], zero_stage=2)
    assert not is_like_one(Box((other,), [1.0]), crowded)


def test_where_there_is_no_time_to_list_them_hosts_stay_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A very large space takes long to be listed anew; the plan that there is stays the answer."""
    real, listings = deep_search.mesh_groups, list[Request]()

    def listing(request: Request, *rest: Any) -> list[MeshGroup]:
        listings.append(request)
        if len(listings) > 1:
            raise OutOfTimeError("the time is up")
        return real(request, *rest)

    monkeypatch.setattr(deep_search, "mesh_groups", listing)
    found = search(asked(60 * 2**20), simulate=simulated, budget=Budget.of(120), simulated=1)
    assert len(listings) > 1
    assert found.plan.config.offload is Offload.NONE
    assert replayed_bound(found.plan) is not None


def test_what_lacks_nothing_but_memory_is_planned_with_hosts_and_proved() -> None:
    """In 60 MiB larger micro-batches do not fit, and small ones take three times as long."""
    request = asked(60 * 2**20)
    found = search(request, simulate=simulated, budget=Budget.of(120), simulated=1)
    alone = asked(60 * 2**20, replace(ONE_STAGE, offload=Offload.NONE))
    without = search(alone, simulate=simulated, budget=Budget.of(120), simulated=1)
    assert found.plan.claims.step_time_s < without.plan.claims.step_time_s / 2
    assert found.plan.config.offload is not Offload.NONE
    assert verify(found.plan) == []
    assert found.plan.certificate is not None
    certificate = certificate_of(found.plan.certificate)
    assert found.plan.config.cut in certificate.pins.hosted
    proved = replayed_bound(found.plan)
    assert proved is not None
    wider = replace(request, pins=replace(ONE_STAGE, hosted=certificate.pins.hosted))
    assert proved.configurations == sum(len(group) for group in listed(wider))
    assert replace(request, pins=certificate.pins) == wider
    bound_ns = math.floor(found.plan.claims.lower_bound_s * 1e9)
    fewer = replace(certificate, pins=ONE_STAGE, configurations=sum(len(group) for group in listed(request)))
    with pytest.raises(CertificateError, match="not in the space"):
        replay(request, fewer, bound_ns, found.plan.config)
