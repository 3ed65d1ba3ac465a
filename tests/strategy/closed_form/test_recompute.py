"""Recompute: shares of a forward pass as counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.recompute import computed_again, share_again
from tests.strategy.closed_form.conftest import BASE, GPT

SELECTIVE = replace(BASE, recompute="selective")
PRODUCTS, SCORES = 12 * 8192**2, 2 * 8192 * 2048
"""Multiply-adds of a layer for one token: 12 h^2 of products with weights, 2 h s of attention that is not fused."""


def share(*jobs: Job) -> list[float]:
    return [float(value) for value in share_again(Jobs.of(jobs))]


def test_all_none_or_some_layers() -> None:
    ways = (replace(BASE, recompute="none"), BASE, replace(BASE, recompute_layers=12))
    assert share(*ways) == [0.0, 1.0, 0.25]


def test_the_core_of_attention_is_its_share_of_the_multiply_adds() -> None:
    plain, fused = share(SELECTIVE, replace(SELECTIVE, flash=True))
    assert plain == pytest.approx(SCORES / (PRODUCTS + SCORES))
    assert fused == pytest.approx(SCORES / 2 / (PRODUCTS + SCORES / 2)), "fused attention looks at half of the pairs"


def test_modules_add_up_and_memory_bound_ones_cost_no_products() -> None:
    total = PRODUCTS + SCORES
    mlp, both, norms = share(*(replace(SELECTIVE, modules=modules) for modules in
                               (("mlp",), ("core_attn", "mlp"), ("layernorm", "moe_act"))))  # fmt: skip
    assert mlp == pytest.approx(8 * 8192**2 / total)
    assert both == pytest.approx(mlp + SCORES / total)
    assert norms == 0


def test_every_second_product() -> None:
    assert share(replace(SELECTIVE, modules=("per-op",))) == [pytest.approx(PRODUCTS / 2 / (PRODUCTS + SCORES))]


def test_experts_count_by_how_many_a_token_takes() -> None:
    shape = replace(GPT, dense_layers=0, moe_layers=48, experts=64, top_k=2, expert_ffn=32768)
    routed = replace(SELECTIVE, shape=shape, modules=("moe",))
    products = 2 * 8 * 8192**2
    assert share(routed) == [pytest.approx(products / (products + 4 * 8192**2 + SCORES))]


def test_modules_are_asked_for_by_name() -> None:
    jobs = Jobs.of([SELECTIVE, replace(SELECTIVE, modules=("mlp",)), BASE])
    assert list(computed_again(jobs, "core_attn")) == [True, False, False]
    with pytest.raises(InputError, match="modules that are computed again must be of core_attn"):
        replace(BASE, modules=("wings",))
