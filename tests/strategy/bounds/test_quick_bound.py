"""The quick bound holds, whatever prices products, and is not far below on GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.bounds.quick_bound import quick_bound_ns
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins, Request
from tests.support.long_parameters import long_but
from tests.support.small_plans import request

MODEL = GptConfig(layers=2, width=256, heads=4, sequence=128, vocabulary=500)


def on_gpus(precision: Precision) -> Request:
    """A small model on two A100s: its products lose tiles and depth, the vocabulary is odd to them."""
    training = Training(global_batch=4, precision=precision)
    two = replace(find_cluster("dgx-a100"), devices_per_node=2)
    return replace(request(2, training, model=MODEL), cost=CostModel(two, {}))


@pytest.mark.parametrize(
    "asked",
    long_but(
        [request(2, Training(global_batch=batch)) for batch in (1, 4)]
        + [on_gpus(Precision.FULL), on_gpus(Precision.BF16)],
        0,
    ),
    ids=["one sample", "cpu", "gpu", "halves"],
)
def test_it_is_below_what_is_solved(asked: Request) -> None:
    for config in candidates_of(
        replace(asked, pins=Pins(recompute=Recompute.NONE, offload=Offload.NONE, zero_stage=0))
    ):
        solved = solve_candidate(asked, config, rules=config.axes)
        assert solved is not None
        assert 0 < quick_bound_ns(asked, config) <= solved.objective_ns


def test_it_knows_what_shapes_lose() -> None:
    """A product without a shape loses nothing: the bound says more."""
    asked = on_gpus(Precision.FULL)
    config = next(c for c in candidates_of(asked) if (c.dp, c.tp, c.num_micro_batches) == (2, 1, 1))
    wide = replace(asked, model=replace(MODEL, width=1024, heads=16, vocabulary=50_000))
    narrow = replace(asked, model=replace(MODEL, width=1024, heads=16, vocabulary=50_001))
    assert quick_bound_ns(narrow, config) > 1.02 * quick_bound_ns(wide, config)
