"""A seeded part of the oracle of the whole search: `python -m tests.campaigns oracle`."""

from __future__ import annotations

import pytest

from tests.campaigns import oracle


@pytest.mark.slow
def test_the_search_agrees_with_every_plan_listed() -> None:
    outcome = oracle.run(10, seed=9000, best=5)
    assert outcome.failures == []
    for knob in ("dp", "tp", "pp", "micro-batch", "signatures", "recompute", "tight limit", "half precision"):
        assert outcome.coverage[knob], knob
