"""What is put together from few layouts is what the mesh itself has."""

from __future__ import annotations

import pytest

from experiments.bench.baselines.pricing import LayerPricing, Strategy
from strategy.layout.config import Recompute
from tests.support.long_parameters import long_but

EXACT = ("forward_ns", "backward_ns", "weight_ns", "before_ns", "after_ns", "static_bytes", "sum_bytes", "saved_bytes")


@pytest.mark.parametrize(
    "strategy",
    long_but(
        [
            Strategy(4, 1),
            Strategy(4, 2, zero_stage=1),
            Strategy(4, 2, Recompute.FULL, 3),
            Strategy(4, 2, searched=True),
        ],
        *(0, 1, 3),
    ),
    ids=str,
)
def test_put_together_is_what_is_laid_out(ample: LayerPricing, strategy: Strategy) -> None:
    found, direct = ample.prices(strategy, 8, 2), ample._on_mesh(strategy, 2, 2)
    assert found is not None
    for name in ("first", "middle", "last"):
        one, other = (getattr(prices.parts, name) for prices in (found, direct))
        for figure in EXACT:
            assert getattr(one, figure) == pytest.approx(getattr(other, figure), rel=0.05, abs=5000), (name, figure)
    assert found.spec == direct.spec


def test_more_ranks_share_out_what_they_compute(ample: LayerPricing) -> None:
    whole, halves = ample.prices(Strategy(1, 1), 1, 16), ample.prices(Strategy(1, 2), 1, 16)
    assert whole is not None
    assert halves is not None
    assert halves.parts.middle.static_bytes < 0.6 * whole.parts.middle.static_bytes
    assert halves.parts.middle.saved_bytes < 0.7 * whole.parts.middle.saved_bytes  # by position between the products


def test_zero_shares_out_state_and_recomputing_drops_what_is_saved(ample: LayerPricing) -> None:
    plain, shared = ample.prices(Strategy(2, 1), 2, 8), ample.prices(Strategy(2, 1, zero_stage=1), 2, 8)
    again = ample.prices(Strategy(2, 1, Recompute.FULL), 2, 8)
    assert plain is not None
    assert shared is not None
    assert again is not None
    assert shared.parts.middle.static_bytes < 0.6 * plain.parts.middle.static_bytes
    assert again.parts.middle.saved_bytes < 0.2 * plain.parts.middle.saved_bytes
    assert again.parts.middle.backward_ns > plain.parts.middle.backward_ns


def test_what_there_is_not(ample: LayerPricing) -> None:
    assert ample.prices(Strategy(4, 1), 2, 8) is None
    assert list(ample.meshes(8)) == [(8, 1), (4, 2), (2, 4)]


def test_crossing_takes_more_than_staying(ample: LayerPricing) -> None:
    narrow, wide = Strategy(4, 1), Strategy(1, 4)
    assert ample.crossing_ns(narrow, wide, 4, 4, apart=False) > 0
    assert ample.crossing_ns(narrow, wide, 4, 4, apart=True) > 0


def test_pricing_is_no_time_of_a_method(ample: LayerPricing) -> None:
    ample.begin(10.0)
    ample.spent_s += 100.0
    assert not ample.is_over()
    ample.begin(1e-9)
    assert ample.is_over()
