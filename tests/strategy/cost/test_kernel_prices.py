"""Kernel prices: both depths say the same, and no part of an act costs less than the least that is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job, Jobs, Shape
from strategy.closed_form.kernels import in_steps
from strategy.closed_form.price import Pricing
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.kernel_prices import has_kernel, kernel_seconds
from strategy.cost.measurement import CostKey, Features
from strategy.hardware.devices import DEVICES
from strategy.hardware.presets import PRESETS, find_cluster

GPUS = sorted(set(PRESETS) - {"dgx-1p"})
HALVES = ("", "bfloat16", "float16", "float8_e4m3fn")
PRODUCTS = ("matmul", "matmul_tn", "batch_matmul", "grouped_matmul", "grouped_matmul_tn")
DIMS = st.one_of(st.integers(1, 300), st.integers(1, 40_000), st.sampled_from((64, 96, 1024, 12288)))
PARTS = st.sampled_from((1, 2, 3, 4, 8, 64))


@pytest.mark.parametrize("where", GPUS)
def test_large_products_of_codes_with_their_casts_are_no_slower_than_in_bf16(where: str) -> None:
    """Both operands are read in bf16, their amaxes found, and codes written; A100 and V100 multiply as bf16."""
    cost = CostModel(find_cluster(where), {})
    sheet = DEVICES[cost.cluster.device.name]
    for n in (4096, 8192, 16384):
        half, coded = (
            cost.seconds(product(kind, dtype, (n, n, n, 1)))
            for kind, dtype in (("matmul", "bfloat16"), ("scaled_matmul", "float8_e4m3fn"))
        )
        casts = 2 * (cost.seconds(Features("amax", 0, 2 * n * n)) + cost.seconds(Features("quantize", 0, 3 * n * n)))
        if sheet.eight > sheet.half:
            assert coded + casts < half
            assert coded > 2 * n**3 / sheet.eight
        else:
            assert coded == half


def product(kind: str, half: str, shape: tuple[int, int, int, int]) -> Features:
    return Features(kind, 2 * int(np.prod(shape)), 0, half=half, product=shape)


@settings(max_examples=150)
@given(
    where=st.sampled_from(GPUS), kind=st.sampled_from(PRODUCTS), half=st.sampled_from(HALVES),
    shape=st.tuples(DIMS, DIMS, DIMS, st.integers(1, 64)), ways=st.tuples(PARTS, PARTS, PARTS, PARTS),
)  # fmt: skip
def test_no_part_of_a_product_costs_less_than_the_least(
    where: str, kind: str, half: str, shape: tuple[int, int, int, int], ways: tuple[int, int, int, int]
) -> None:
    """Nor less than the least of all ways to cut it that are looked at."""
    cost = CostModel(find_cluster(where), {}, 1e-7)
    whole = product(kind, half, shape)
    rows, columns, depth, count = (-(-size // parts) for size, parts in zip(shape, ways, strict=True))
    piece = product(kind, half, (rows, columns, depth, count))
    least = cost.least_of(whole)
    seconds = cost.seconds(piece)
    floor_s = least.fixed_s + cost.act_overhead_s + least.s_per_flop * whole.flop / np.prod(ways)
    assert seconds * (1 + 1e-9) >= floor_s > 0
    (looked_up,) = cost.product_seconds(whole, np.array([(rows, columns, depth, count)]))
    assert looked_up == pytest.approx(seconds, rel=1e-12)


@settings(max_examples=150)
@given(
    where=st.sampled_from(GPUS), half=st.sampled_from(HALVES), gradient=st.booleans(), every=st.booleans(),
    shape=st.tuples(
        st.integers(1, 32), st.integers(1, 16_384), st.integers(1, 64), st.integers(1, 64),
        st.sampled_from((32, 64, 80, 128, 256, 320)),
    ),
    keys=st.integers(1, 16_384), parts=st.tuples(PARTS, PARTS, PARTS),
)  # fmt: skip
def test_no_part_of_attention_costs_less_than_the_least(
    where: str, half: str, gradient: bool, every: bool, shape: tuple[int, int, int, int, int], keys: int,
    parts: tuple[int, int, int],
) -> None:  # fmt: skip
    cost = CostModel(find_cluster(where), {})

    def attention(sequences: int, queries: int, heads: int, kv_heads: int, head_dim: int) -> Features:
        kind = "attention_grad" if gradient else "attention"
        flop = (10 if gradient else 4) * sequences * queries * heads * head_dim * keys
        own = (sequences, queries, heads, kv_heads, head_dim)
        return Features(kind, flop, 0, half=half, attention_shape=own, every_pair=every)

    whole = attention(*shape)
    sequences, queries, heads, kv_heads, head_dim = shape
    cut = (-(-size // by) for size, by in zip((sequences, queries, heads), parts, strict=True))
    piece = attention(*cut, kv_heads, head_dim)
    least = cost.least_of(whole)
    assert cost.seconds(piece) * (1 + 1e-9) >= least.fixed_s + least.s_per_flop * whole.flop / np.prod(parts) > 0


@pytest.mark.parametrize(("where", "device"), [("dgx-a100", "A100-80"), ("dgx-h100", "H100"), ("dgx-b200", "B200")])
def test_a_layer_costs_the_same_in_both_depths(where: str, device: str) -> None:
    """All products and the attention of one layer, forward, of one micro-batch."""
    shape = Shape.transformer(1, 4096, 32, 16384, 50_304)
    job = Job(
        shape, DEVICES[device], "acts", "half", 8, 8, 50e9, "infiniband", 2048, 8, 1, tp=4, flash=True
    )  # fmt: skip
    constants = shipped().constants
    pricing = Pricing(Jobs.of([job]), constants)
    forward = pricing.work.forward
    generation = DEVICES[device].generation
    products_s = constants[f"products.{generation}.half"] * in_steps(forward.products, constants)
    attention_s = constants[f"flash.{generation}"] * forward.fused
    cost = CostModel(find_cluster(where), {})
    acts = [
        product("matmul", "bfloat16", one)
        for one in ((2048, 3072, 4096, 1), (2048, 4096, 1024, 1), (2048, 4096, 4096, 1), (2048, 4096, 4096, 1))
    ]
    flop = 4 * 8 * 128 * 2048**2
    fused = Features("attention", flop, 0, half="bfloat16", attention_shape=(1, 2048, 8, 8, 128))
    assert sum(map(cost.seconds, acts)) == pytest.approx(float(products_s[0]), rel=1e-9)
    assert cost.seconds(fused) == pytest.approx(float(attention_s[0]), rel=1e-9)


def test_measured_constants_take_precedence() -> None:
    found = find_cluster("dgx-a100")
    key, act = CostKey("matmul", "bfloat16"), product("matmul", "bfloat16", (512, 512, 512, 1))
    measured = CostModel(found, {key: Coefficients(1e-5, 1e-14, 0.0)})
    assert measured.seconds(act) == 1e-5 + 1e-14 * act.flop
    assert measured.least_of(act) == measured.coefficients_of(act)
    assert measured.product_seconds(act, np.array([act.product])) == pytest.approx([measured.seconds(act)])
    assert measured.all_seconds([act, product("batch_matmul", "", (64, 64, 64, 8))])[0] == measured.seconds(act)


def test_acts_at_once_cost_what_each_costs() -> None:
    device = find_cluster("dgx-h100").device
    acts = [product(kind, half, (300, 512, 77, 3)) for kind in PRODUCTS for half in HALVES]
    acts += [
        Features("attention", 4 * 512 * 512 * 64, 0, attention_shape=(1, 512, 1, 1, 64), every_pair=e)
        for e in (True, False)
    ]
    assert all(map(has_kernel, acts))
    assert kernel_seconds(device, acts) == [one for act in acts for one in kernel_seconds(device, [act])]
    assert not has_kernel(Features("gelu", 10, 10))
    assert not has_kernel(replace(acts[0], product=None))
