"""Data sheets: a CPU's count at face value, a GPU's by its kernels and the shares that published runs reached."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strategy.closed_form.calibration import shipped
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import data_sheet, data_sheets, unpublished
from strategy.cost.measurement import Features
from strategy.hardware.cluster import Cluster, Link
from strategy.hardware.devices import DEVICES
from strategy.hardware.presets import PRESETS, find_cluster
from strategy.kernels import on_device
from strategy.kernels.precision import KernelPrecision
from tests.support.small_plans import cluster

LARGE = (8192, 8192, 8192, 1)


def product(shape: tuple[int, int, int, int], kind: str = "matmul", half: str = "bfloat16") -> Features:
    m, n, k, count = shape
    return Features(kind, 2 * m * n * k * count, 0, half=half, product=shape)


def share(where: Cluster, features: Features) -> float:
    """FLOP/s over the dense peak."""
    seconds = CostModel(where, {}).seconds(features)
    return features.flop / seconds / (where.device.flop_per_s * where.device.bf16_speedup)


def test_a_cpu_counts_at_face_value() -> None:
    found = cluster(2)
    assert data_sheet(found, Features("matmul", 1, 1)).s_per_flop == 1 / found.device.flop_per_s
    assert data_sheet(found, Features("add", 0, 1)).s_per_byte == 1 / found.device.memory_bytes_per_s
    assert data_sheet(found, Features("all_reduce", 0, 1, 1, "intra")).s_per_byte == 1 / found.intra.bytes_per_s


def test_a_gpu_reaches_what_its_kernels_do_in_steps() -> None:
    """Large products come near the share of kernels by what runs took longer; narrow ones lose tiles and waves."""
    constants = shipped().constants
    for name, generation in (("dgx-a100", "ampere"), ("dgx-h100", "hopper"), ("dgx-b200", "blackwell")):
        found = find_cluster(name)
        large = share(found, product(LARGE))
        rate = on_device._of_products(DEVICES[found.device.name], KernelPrecision.BF16).rate
        assert 0.8 < large / (rate / constants[f"products.{generation}.half"]) <= 1
        assert share(found, product((8192, 8192, 64, 1))) < 0.6 * large
        assert share(found, product((256, 8200, 1024, 1))) < 0.8 * large
        assert share(found, product((8192, 1, 8192, 1))) < 0.05 * large, "bound by its bytes"
        assert share(found, replace(product(LARGE), product=None)) >= large, "a bound where no shape is known"


def test_products_cost_at_once_what_each_costs() -> None:
    """Bit for bit, whatever their dtypes, with other acts among them."""
    rng = random.Random(0)
    for name in ("dgx-a100", "dgx-1", "dgx-h100", "dgx-1p"):
        found = find_cluster(name)
        acts = [Features("add", 0, 1), Features("attention", 10**9, 0, half="float16")]
        for _ in range(300):
            m, n, k = (rng.choice((1, 64, 96, 333, 12288, rng.randrange(1, 1 << 16))) for _ in range(3))
            half = rng.choice(("", "float16", "bfloat16"))
            acts.append(product((m, n, k, rng.choice((1, 12, 300))), rng.choice(("matmul", "batch_matmul")), half))
        assert data_sheets(found, acts) == [data_sheet(found, one) for one in acts]


def test_a_causal_mask_halves_fused_attention() -> None:
    """Of 16 heads of 128 over 64 Ki positions; the gradient takes what runs took longer."""
    found = find_cluster("dgx-a100")
    flop, shape = 4 * 16 * 128 * 2**32, (1, 2**16, 16, 16, 128)
    masked, full = (
        Features("attention", flop, 0, half="bfloat16", attention_shape=shape, every_pair=every)
        for every in (False, True)
    )
    assert share(found, masked) == pytest.approx(2 * share(found, full), rel=0.02)
    cost = CostModel(found, {})
    gradient = replace(masked, kind="attention_grad", flop=10 * flop // 4)
    assert cost.seconds(gradient) / cost.seconds(masked) == pytest.approx(shipped().constants["flash.backward"])


def test_collectives_reach_what_nccl_does() -> None:
    """Inside a switch an all-reduce of an H100 beats its ring; fabrics between nodes differ."""
    a100, h100 = find_cluster("dgx-a100"), find_cluster("dgx-h100")
    eight = Features("all_reduce", 0, 10**9, 7, "intra")
    ring = Features("all_gather", 0, 10**9, 7, "intra")
    by_link = [1 / data_sheet(c, f).s_per_byte / c.intra.bytes_per_s for c in (a100, h100) for f in (eight, ring)]
    assert by_link[0] == pytest.approx(by_link[1], rel=0.02)
    assert by_link[2] > 1.02 * by_link[3]
    assert all(0.6 < share < 1.3 for share in by_link)
    far = Features("reduce_scatter", 0, 10**9, 15, "inter")
    times = {fabric: CostModel(replace(a100, fabric=fabric), {}).seconds(far) for fabric in ("infiniband", "omnipath")}
    assert 2 < times["omnipath"] / times["infiniband"] < 3


def test_more_bandwidth_is_never_slower_and_an_unknown_gpu_is_like_an_a100() -> None:
    found = find_cluster("dgx-a100")
    quick = replace(found, intra=Link(2 * found.intra.bytes_per_s, found.intra.latency_s))
    eight = Features("all_reduce", 0, 10**9, 7, "intra")
    assert CostModel(quick, {}).seconds(eight) < 0.6 * CostModel(found, {}).seconds(eight)
    unknown = replace(found, device=replace(found.device, name="X900"))
    assert CostModel(unknown, {}).seconds(product(LARGE)) == CostModel(found, {}).seconds(product(LARGE))


def test_what_no_published_run_was_on_is_said() -> None:
    found = {name: unpublished(replace(one, nodes=2)) for name, one in PRESETS.items()}
    assert found["dgx-a100"] == found["dgx-h100"] == found["gb200-nvl72"] == ()
    assert found["dgx-1p"] == ("device P100",)
    assert found["v100-vpc25"] == ("fabric tcp",)
    a100 = find_cluster("dgx-a100")
    assert unpublished(replace(a100, device=replace(a100.device, name="A100-SXM4-80GB"))) == ()
    assert unpublished(replace(a100, device=replace(a100.device, name="X900"))) == ("device X900",)
    assert unpublished(cluster(2)) == ("device small", "links")


def test_every_preset_prices_every_kind() -> None:
    for one in PRESETS.values():
        for kind in ("matmul", "attention_grad", "conv2d", "gelu", "adamw"):
            assert 0 < CostModel(one, {}).seconds(Features(kind, 10**9, 10**6)) < 1
        for kind in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "rotate", "transfer"):
            for level in ("intra", "inter"):
                assert 0 < CostModel(one, {}).seconds(Features(kind, 0, 10**6, 3, level)) < 1
