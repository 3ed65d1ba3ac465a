"""What is known of many boxes at once: the order in which it is found out, and that all of it is proved."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.bounds.certificate import certificate_of, document
from strategy.bounds.closed_forms import ClosedForms, all_of_micro_batch, is_shared, plain
from strategy.bounds.configurations import mesh_groups
from strategy.bounds.quick_bound import least_work
from strategy.bounds.replay import replay
from strategy.cost.cost import CostModel
from strategy.hardware.presets import PRESETS
from strategy.layout.config import Offload
from strategy.models.decoder import DecoderConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search import shared_cuts
from strategy.search.box import Box
from strategy.search.refinement import Refinement
from strategy.search.template.answers import Question
from strategy.space.request import Pins, Request
from strategy.space.short_model import shortened

EXPERTS = DecoderConfig(6, 512, 8, 8, 64, 1024, 512, 1024, sparse=(1,), experts=8, choices=2, expert_hidden=256)


def refinement(limit: int, **pins: int) -> Refinement:
    """Of a mixture on two nodes in so many bytes, nothing of which is refined yet."""
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:2", nodes=2)
    training = Training(64, precision=Precision.BF16)
    request = Request("mixture", EXPERTS, training, CostModel(cluster, {}), limit, Pins(**pins))  # type: ignore[arg-type]
    work, short = least_work(request), shortened(EXPERTS)
    assert short is not None
    groups = mesh_groups(request, ClosedForms(request, work).work_bounds_ns)
    return Refinement(request, short, work, groups, Budget.of(600), None)


def first_question(found: Refinement, box: Box) -> Question:
    """What it asks first: what its layers take."""
    return found._ask(plain(box.configs[0]), all_of_micro_batch(EXPERTS.layers), tensor_axis=True)


def waiting(found: Refinement, box: Box) -> int:
    """So many boxes wait for what its template says of its layers."""
    return sum(other.axes == box.axes and math.isfinite(other.bound_ns) for other in found.boxes)


def test_few_boxes_that_wait_for_a_template_are_bounded_in_memory_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refinement(2**40, tp=2, pp=2, micro_batch=1)
    box = next(box for box in found.boxes if math.isfinite(box.bound_ns) and is_shared(box.config))
    question, count = first_question(found, box), waiting(found, box)
    assert count > 1
    for few, is_first in ((count - 1, False), (count, True)):
        monkeypatch.setattr(shared_cuts, "FEW_WAITING", few / question.effort)
        box.within = None
        assert not found.cuts.bound_in_memory(box, question.effort, math.inf), "nothing is to be surpassed"
        most_ns = 2 * box.bound_ns
        assert found.cuts.bound_in_memory(box, question.effort, most_ns) is is_first
        assert (box.within is not None) is is_first
    assert not found.cuts.bound_in_memory(box, question.effort, 2 * box.bound_ns), "once for each box"


def test_what_a_template_says_is_not_lost_on_boxes_that_were_bounded_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_cuts, "FEW_WAITING", 10**6)
    found = refinement(2**40, tp=2, pp=2, micro_batch=1)
    box = next(box for box in found.boxes if math.isfinite(box.bound_ns) and is_shared(box.config))
    question = first_question(found, box)
    assert found.cuts.bound_in_memory(box, question.effort, 2 * box.bound_ns)
    first = box.within
    with found:
        (answer,) = found.workers.answers([question])
        found._take(box, question, answer, math.inf)  # type: ignore[arg-type]
        assert box.level == 1
        assert box.is_outdated
        found._question(box, math.inf, promises=False)
    assert box.within is not first
    assert not box.is_outdated


def test_what_was_bounded_in_memory_alone_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though a template has told more since: of what it was bounded by nothing is lost."""
    monkeypatch.setattr(shared_cuts, "FEW_WAITING", 10**6)
    found = refinement(40 * 2**20, offload=Offload.NONE)
    found.known.planned_ns = 3.0 * found.bound_ns
    with found:
        for _ in range(8):
            left = [box for box in found.boxes if box.bound_ns < found.most_ns and not box.is_done]
            found._take_turn(left, found.most_ns)
    closed = [box for box in found.boxes if box.is_outdated and box.bound_ns > found.bound_ns]
    assert closed
    certificate, proved = found.certificate(found.bound_ns)
    assert certificate is not None
    assert proved > 0.999 * found.bound_ns
    places = {found.listed.index(config) for box in closed for config in box.configs}
    assert places & set(certificate.multipliers), "some of them are proved by their linear programs"
    replay(found.request, certificate_of(document(certificate)), proved, found.listed[0])
