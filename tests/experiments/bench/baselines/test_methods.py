"""Each published method finds what it is known for, and nothing that does not fit."""

from __future__ import annotations

import math

import pytest

from experiments.bench.baselines import JOINT_BASELINES, LayerPricing
from experiments.bench.baselines.galvatron import galvatron
from experiments.bench.baselines.mist import _program
from experiments.bench.baselines.pipelines import LayerRun
from experiments.bench.baselines.pricing import Strategy
from experiments.bench.baselines.uniform import uniform
from tests.experiments.bench.baselines.conftest import limited
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", long_but(JOINT_BASELINES, 1))
def test_answers_fit(ample: LayerPricing, name: str) -> None:
    ample.begin(60.0)
    free = JOINT_BASELINES[name](ample)
    assert free is not None
    assert free.note == ""
    tight = limited(ample, int(0.8 * free.peak_bytes))
    tight.begin(60.0)
    found = JOINT_BASELINES[name](tight)
    if found is not None:
        assert found.peak_bytes <= tight.limit_bytes
        assert found.step_ns >= free.step_ns
    nothing = limited(ample, 1)
    nothing.begin(60.0)
    assert JOINT_BASELINES[name](nothing) is None


@pytest.mark.parametrize("name", long_but(JOINT_BASELINES, *range(3)))
def test_time_ends_them(ample: LayerPricing, name: str) -> None:
    ample.begin(1e-9)
    assert JOINT_BASELINES[name](ample) is None


def test_a_strategy_for_every_layer_is_no_slower_than_one_for_all_of_one_stage(ample: LayerPricing) -> None:
    ample.begin(60.0)
    by_layer, alike = galvatron(ample), uniform(ample)
    assert by_layer is not None
    assert alike is not None
    assert math.isclose(by_layer.step_ns, alike.step_ns, rel_tol=0.3)


def test_the_program_deals_out_layers_to_balance(ample: LayerPricing) -> None:
    strategy = Strategy(4, 1)
    prices = ample.prices(strategy, 4, 4)
    assert prices is not None
    slow, quick = (
        [(number * each, 0.0, [LayerRun(strategy, prices, number)]) for number in range(1, 8)] for each in (3.0, 1.0)
    )
    found = _program([slow, quick], 8, 100)
    assert found is not None
    assert [stage[0].count for stage in found] == [2, 6]
    assert _program([slow, []], 8, 100) is None
