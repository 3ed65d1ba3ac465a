"""Mixed proposals: the fastest share that fits, and none where one way alone does as well."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.search.mixed_proposals import mixed_proposal
from strategy.search.search_state import LayoutProposal, SearchState, usual_margin
from strategy.search.template.answers import Proposed
from strategy.search.template.layer_mix import Seam
from strategy.search.template.parts import LayerPart, ModelParts
from strategy.space.request import Request
from tests.support.small_plans import request

CONFIG = PlanConfig(1, 1, 2, 1, 8, Schedule.ONE_F_ONE_B)
MARGIN = usual_margin(CONFIG)
LAYERS = 10
LIMIT = 1000


def way(time_ns: int, nbytes: int, seam: str = "alike") -> Proposed:
    """Layers that take so long each way, and hold so much for ever."""
    part = LayerPart(forward_ns=time_ns, backward_ns=2 * time_ns, static_bytes=nbytes)
    return Proposed({}, ModelParts(part, part, part), {}, 1, Seam(seam, "alike"))


def asked() -> Request:
    model = GptConfig(layers=LAYERS, width=8, heads=2, sequence=4, vocabulary=16)
    return replace(request(2, Training(global_batch=8), model=model), memory_limit_bytes=LIMIT)


def found(fast: Proposed, light: Proposed) -> LayoutProposal | None:
    return mixed_proposal(asked(), SearchState(), CONFIG, fast, light, math.inf)


@pytest.mark.parametrize("seed", range(20))
def test_the_fastest_share_that_fits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    light_bytes = int(rng.integers(20, 190))
    fast_bytes = int(rng.integers(light_bytes, 400))
    fast, light = way(100, fast_bytes), way(130, light_bytes)
    most = [
        share
        for share in (Fraction(number, 4) for number in range(1, 4))  # of four layers between on each of two stages
        if MARGIN * (fast_bytes * (1 + 4 - int(4 * share)) + light_bytes * int(4 * share)) <= LIMIT
    ]
    one = found(fast, light)
    fits = [MARGIN * 5 * nbytes <= LIMIT for nbytes in (fast_bytes, fast_bytes + 4 * (light_bytes - fast_bytes) / 5)]
    if fits[0] or not fits[1] or not most:
        assert one is None
    else:
        assert one is not None
        assert one.mix is not None
        assert one.mix.share == min(most)
        assert one.mix.signatures is light.signatures


def test_which_of_both_is_first_does_not_matter() -> None:
    fast, light = way(100, 240), way(130, 120)
    one, other = found(fast, light), found(light, fast)
    assert one is not None
    assert one.mix is not None
    assert other is not None
    assert other.mix is not None
    assert max(*one.found.peak_bytes, *other.found.peak_bytes) <= LIMIT / MARGIN
    assert one.mix.share == Fraction(1, 2)
    assert other.mix.share == Fraction(3, 4)  # the ends are light, too


@pytest.mark.parametrize(
    ("fast", "light"),
    [
        (way(100, 100), way(130, 50)),
        (way(100, 400), way(130, 300)),
        (way(100, 400), way(130, 50, "unlike")),
        (way(100, 150), way(130, 300)),
    ],
    ids=["both fit", "none fits", "layers do not meet", "what is fast is light"],
)
def test_no_mix_where_it_gains_nothing(fast: Proposed, light: Proposed) -> None:
    assert found(fast, light) is None


def busy(time_ns: int, beside_ns: int, nbytes: int = 10) -> Proposed:
    """Layers that take so long each way, beside which links are at work for so long."""
    part = LayerPart(
        forward_ns=time_ns,
        backward_ns=2 * time_ns,
        forward_overlapped_ns=beside_ns,
        backward_overlapped_ns=2 * beside_ns,
        static_bytes=nbytes,
    )
    return Proposed({}, ModelParts(part, part, part), {}, 1, Seam("alike", "alike"))


def balanced(one: Proposed, other: Proposed, most_ns: float, *, balances: bool = True) -> LayoutProposal | None:
    model = GptConfig(layers=LAYERS, width=8, heads=2, sequence=4, vocabulary=16)
    on_devices = replace(request(2, Training(global_batch=8), model=model, backend="cuda"), memory_limit_bytes=LIMIT)
    return mixed_proposal(on_devices, SearchState(), CONFIG, one, other, most_ns, balances=balances)


def test_a_mix_keeps_devices_and_links_busy() -> None:
    computes, sends = busy(1000, 100), busy(700, 1500)
    found = balanced(computes, sends, math.inf)
    assert found is not None
    assert found.mix is not None
    assert found.mix.share in (Fraction(1, 4), Fraction(1, 2))
    ends = [balanced(one, one, math.inf) for one in (computes, sends)]
    assert ends == [None, None], "a way is not mixed with itself"
    assert balanced(computes, sends, found.found.step_ns) is None, "no better than what there is"
    assert balanced(computes, sends, math.inf, balances=False) is None, "both fit"
    heavy = busy(700, 1500, 2 * LIMIT)
    assert balanced(computes, heavy, math.inf) is None, "no share of it fits"


def test_a_mix_that_fills_the_memory_is_found_all_the_same() -> None:
    fast, light = way(100, 240), way(130, 120)
    assert balanced(fast, light, math.inf) == balanced(fast, light, math.inf, balances=False) is not None
