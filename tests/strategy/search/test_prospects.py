"""What boxes are thought to take before a template has told, and layouts that are asked for in a hurry."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from strategy.base.budget import Budget
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.configurations import mesh_groups
from strategy.bounds.least_work import LeastWork
from strategy.bounds.point import SIZE
from strategy.bounds.quick_bound import least_work
from strategy.cost.cost import CostModel
from strategy.hardware.presets import PRESETS
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models.decoder import DecoderConfig
from strategy.passes.training import Training
from strategy.search import prospects as module
from strategy.search.prospects import ACROSS, MOST_TRIES, SQUEEZED, UNLIKELY, Prospects
from strategy.search.refinement import Refinement
from strategy.search.template.outer_approximation import Bound, OuterApproximation
from strategy.space.request import Pins, Request
from strategy.space.short_model import shortened

EXPERTS = DecoderConfig(6, 512, 8, 8, 64, 1024, 512, 1024, sparse=(1,), experts=32, choices=4, expert_hidden=256)


def refinement(**pins: int) -> Refinement:
    """Of a mixture on two nodes, nothing of which is refined yet."""
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:2", nodes=2)
    request = Request("mixture", EXPERTS, Training(64), CostModel(cluster, {}), 2**40, Pins(**pins))  # type: ignore[arg-type]
    work, short = least_work(request), shortened(EXPERTS)
    assert short is not None
    return Refinement(
        request, short, work, mesh_groups(request, ClosedForms(request, work).work_bounds_ns), Budget.of(600), None
    )


def test_experts_on_other_nodes_are_thought_to_take_longer_than_those_on_the_same() -> None:
    found = refinement(dp=16, tp=1, pp=1, micro_batch=4, zero_stage=0)
    boxes = [box for box in found.boxes if box.config.recompute is Recompute.NONE]
    promised = {box.config.ep: found.prospects._promise(box) / box.bound_ns for box in boxes}
    assert promised[1] < promised[2] < promised[8] < 0.8 * promised[16]


def test_stages_across_nodes_are_thought_to_take_longer_until_proposals_tell() -> None:
    found = refinement(tp=1, micro_batch=4, zero_stage=0)
    across = {box.config.pp: found.prospects._across(box.config) for box in found.boxes}
    assert set(across.values()) == {1.0}
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:3", nodes=3)
    request = replace(found.request, training=Training(48), cost=CostModel(cluster, {}), pins=Pins(dp=6, pp=4))
    prospects = Prospects(request, found.work, found.cuts.forms)
    groups = mesh_groups(request, found.cuts.forms.work_bounds_ns)
    configs = [config for group in groups for config in group.configs if not config.strides]
    assert configs
    assert {prospects._across(config) for config in configs} == {ACROSS}


def test_in_a_hurry_layouts_are_asked_for_at_once() -> None:
    asked: dict[bool, list[tuple[bool, bool]]] = {}
    for hurries in (False, True):
        found = refinement(tp=2, pp=1, micro_batch=4)
        found.hurries = hurries
        ((_, question), *_) = found._promised(found.boxes, math.inf)
        asked[hurries] = [(question.tensor_axis, question.proposes)]
    assert asked == {False: [(True, False)], True: [(False, True)]}


def test_what_does_not_fit_shows_what_rules_of_thumb_are_worth() -> None:
    found = refinement(tp=1, micro_batch=4)
    prospects, box = found.prospects, next(box for box in found.boxes if box.config.recompute is Recompute.FULL)
    held = prospects._roughly_held(box.config)
    prospects.request = replace(prospects.request, memory_limit_bytes=int(held / prospects.rough))
    unlearned_ns = prospects._guess_ns(box)
    prospects._learn_rough(box.config, 2 * held / prospects.request.memory_limit_bytes)
    prospects._learn_rough(box.config, 3 * held / prospects.request.memory_limit_bytes)  # a heavier one says nothing
    assert math.isclose(prospects.rough, 0.5)
    assert prospects._guess_ns(box) > 2 * unlearned_ns, "it is thought to be too full"


def test_what_is_outside_of_layers_is_thought_to_wait_for_them_as_they_are_dealt_out_best() -> None:
    """Of six layers on two stages, with a head of so many: 3 + 3 layers, 4 + 2, 5 + 1."""
    found = refinement(tp=1, pp=2, micro_batch=1, zero_stage=0)
    box = next(box for box in found.boxes if box.config.recompute is Recompute.NONE)
    box.configs = tuple(
        replace(box.config, schedule=Schedule.ONE_F_ONE_B, virtual_stages=1, runs=runs)
        for runs in ((3, 3), (4, 2), (5, 1))
    )
    box.bounds_ns = [1.0] * 3
    for behind, uneven in ((0.0, 0.0), (1.0, 0.5), (2.0, 0.0), (3.0, 0.5), (4.0, 0.0), (6.0, 1.0)):
        parts = SimpleNamespace(parts_s=(0.0, 6.0, behind))
        found.prospects.work = cast("LeastWork", SimpleNamespace(seconds=lambda config, parts=parts: parts))
        assert math.isclose(found.prospects._uneven_s(box), uneven, abs_tol=1e-9), behind


def test_a_box_is_asked_for_lighter_layouts_before_it_is_thought_to_have_none() -> None:
    """By its bound in memory it has some; the first that were found hold twice as much as there is."""
    found = refinement(tp=1, pp=1, micro_batch=4, zero_stage=0)
    prospects, box = found.prospects, next(box for box in found.boxes if box.config.recompute is Recompute.NONE)
    box.within, box.level = found.cuts.within_of(box), 3
    box.raise_bounds(math.inf)
    box.crowding[box.config.schedule] = 2.0 * prospects.request.memory_limit_bytes
    promised = []
    for box.tries in range(MOST_TRIES + 1):
        promised.append(prospects._promise(box) / box.bound_ns)
    assert promised[0] == promised[-1] == UNLIKELY
    assert 1 < promised[1] < promised[2] < promised[3] < promised[4]


def test_lighter_layouts_are_asked_for_as_if_there_were_less_memory() -> None:
    """Once what fits by all that is known was found not to: bytes have a price before they crowd the memory."""
    found = refinement(tp=1, pp=1, micro_batch=4, zero_stage=0)
    prospects, box = found.prospects, next(box for box in found.boxes if box.config.recompute is Recompute.NONE)
    box.within, box.level = found.cuts.within_of(box), 3
    box.raise_bounds(math.inf)
    crowded: list[float] = []
    within = box.within

    def likely(config: PlanConfig, crowding: float) -> Bound:
        crowded.append(crowding / prospects.request.memory_limit_bytes)
        return Bound(None, np.zeros(SIZE)) if crowding > 0.25 * prospects.request.memory_limit_bytes else known

    known = within.likely(box.config, 0.0)
    box.within = cast("OuterApproximation", SimpleNamespace(likely=likely, count=within.count))
    box.prices = {box.config: known}
    for harder, asked in ((0.0, [0.0]), (2.0, [2 * SQUEEZED]), (3.0, [3 * SQUEEZED, 0.0])):
        crowded.clear()
        box.harder = harder
        weights = prospects.likely_to_fit(box, math.inf)
        assert crowded == pytest.approx(asked)
        assert (weights >= known.weights).all()


def test_parts_that_are_too_unlike_make_many_ranks_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    prospects = refinement(tp=1, micro_batch=4).prospects

    def is_plannable(dp: int, zero_stage: int) -> bool:
        return prospects._is_plannable(PlanConfig(dp, 1, 1, 1, 1, Schedule.ONE_F_ONE_B, zero_stage=zero_stage))

    assert is_plannable(300, 3), "few ranks are planned each by itself"
    monkeypatch.setattr(module, "MOST_ACTORS", 0)
    assert [is_plannable(256, 3), is_plannable(300, 3), is_plannable(300, 0)] == [True, False, True]


def test_layouts_slower_than_what_is_likely_to_fit_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The faster ones may turn out not to fit; once a plan is known, what is slower is of no use."""
    with refinement(dp=16, tp=1, pp=1, micro_batch=4, ep=1, zero_stage=0) as found:
        found.run()
    box = next(box for box in found.boxes if box.layouts and box.within is not None)
    prospects, (point, *_) = found.prospects, next(iter(box.points.values()))
    monkeypatch.setattr(Prospects, "best_ns", property(lambda self: 1.0))
    count = len(prospects.known.proposals)
    prospects.propose(box, box.layouts[0], point)
    assert len(prospects.known.proposals) > count
    count = len(prospects.known.proposals)
    prospects.known.planned_ns = 1.0
    prospects.propose(box, box.layouts[0], point)
    assert len(prospects.known.proposals) == count
