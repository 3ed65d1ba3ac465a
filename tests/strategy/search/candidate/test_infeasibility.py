"""Where nothing fits, the search names the smallest limit that would do, and that limit does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InfeasibleError
from strategy.passes.training import Training
from strategy.search.search import search
from tests.support.small_plans import request, simulated


def test_too_little_memory_names_what_would_do() -> None:
    asked = replace(request(1, Training(global_batch=4)), memory_limit_bytes=1000)
    with pytest.raises(InfeasibleError) as caught:
        search(asked, simulate=simulated, time_limit_s=120)
    smallest = caught.value.smallest_limit
    assert smallest is not None
    assert str(smallest) in str(caught.value)
    plan = search(replace(asked, memory_limit_bytes=smallest), simulate=simulated, time_limit_s=120).plan
    assert max(plan.claims.peak_memory_bytes) == smallest
    with pytest.raises(InfeasibleError):
        search(replace(asked, memory_limit_bytes=smallest * 99 // 100), simulate=simulated, time_limit_s=120)
