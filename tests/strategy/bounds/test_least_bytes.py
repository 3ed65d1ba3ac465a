"""Least bytes: of a layer on a device, and of what waits on its host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.mixed_precision import Precision
from tests.strategy.bounds.test_template_cut import asked

PLAIN = PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B)
OF_LAYER = 12 * 256**2 + 13 * 256
"""Parameters of a layer of a GPT: products of weights, their biases, and norms."""


def test_state_and_activations_move_to_the_host() -> None:
    work = least_work(asked(Precision.BF16))
    here, there = (work.bytes_of_layer(replace(PLAIN, offload=offload)) for offload in (Offload.NONE, Offload.ALL))
    assert (here.on_host, here.waiting) == (0, 0)
    assert there.on_host == pytest.approx(12 * OF_LAYER / 4, rel=0.01), "in single precision, with two moments"
    assert here.held - there.held == pytest.approx(there.on_host, rel=0.01)
    assert there.saved < 0.05 * here.saved
    assert there.waiting == pytest.approx(here.saved, rel=0.05)
    state, passing = (
        work.bytes_of_layer(replace(PLAIN, offload=kind)) for kind in (Offload.OPTIMIZER, Offload.ACTIVATIONS)
    )
    assert (state.on_host, state.waiting) == (there.on_host, 0)
    assert (passing.on_host, passing.waiting) == (0, there.waiting)
    again = work.bytes_of_layer(replace(PLAIN, offload=Offload.ALL, recompute=Recompute.FULL))
    assert 0 < again.waiting < 0.2 * there.waiting, "what is computed again need not wait"


def test_what_a_host_cannot_hold_does_not_fit() -> None:
    request = asked(Precision.BF16)
    cluster = request.cost.cluster
    assert cluster.host is not None
    config = replace(PLAIN, offload=Offload.ALL)
    least = least_work(request).bytes_of_layer(config)
    needed = request.model.layers * (least.on_host + least.waiting)
    for part, fits in ((1.01, True), (0.99, False)):
        host = replace(cluster.host, memory_bytes=int(part * needed))
        small = replace(request, cost=replace(request.cost, cluster=replace(cluster, host=host)))
        forms = ClosedForms(small, least_work(small))
        assert forms.fitting([config]) == [fits]
        assert forms.fitting([PLAIN]) == [True]
