"""Least copies: what waits on the host travels there and back, whatever the layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.least_copies import least_copies_ns
from strategy.bounds.point import MICRO_COPIED, PARTS, SIZE
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.mixed_precision import Precision
from strategy.space.short_model import MIDDLE
from tests.strategy.bounds.test_template_cut import asked, solved

PLAIN = PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B, offload=Offload.ALL)


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_no_layout_moves_less(recompute: Recompute) -> None:
    request, config = asked(Precision.BF16), replace(PLAIN, recompute=recompute)
    weights = np.zeros(SIZE)
    weights[MICRO_COPIED] = 1.0
    moved = solved(request, config, weights, tensor_axis=False).point[MICRO_COPIED]
    least = least_copies_ns(least_work(request), config)
    assert 0 < least <= moved.reshape(-1, PARTS)[:, MIDDLE].sum() < 1.01 * least


def test_what_stays_on_the_device_does_not_travel() -> None:
    request = asked(Precision.BF16)
    forms = ClosedForms(request, least_work(request))
    assert forms.copies_ns(PLAIN) > forms.copies_ns(replace(PLAIN, recompute=Recompute.FULL)) > 0
    for offload in (Offload.NONE, Offload.OPTIMIZER):
        assert forms.copies_ns(replace(PLAIN, offload=offload)) == 0
    (all_,) = forms.first_bounds_ns([PLAIN])
    assert all_ >= PLAIN.num_micro_batches * forms.copies_ns(PLAIN)
