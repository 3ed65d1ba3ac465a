"""Codes with a scale per block are asked of devices that multiply them, and priced at their rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.hardware.cluster import Cluster
from strategy.hardware.cluster_file import read_cluster, write_cluster
from strategy.hardware.presets import find_cluster
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.request import Request
from tests.support.small_plans import cluster

MODEL = GptConfig(layers=2, width=64, heads=2, sequence=32, vocabulary=29)
BLOCKS = (Precision.FP8_BLOCK, Precision.MXFP8, Precision.NVFP4)


def asked(where: Cluster, precision: Precision) -> Request:
    return Request("gpt", MODEL, Training(8, precision=precision), CostModel(where, {}), 2**40)


@pytest.mark.parametrize(
    ("preset", "known"),
    [
        ("dgx-a100", ()),
        ("dgx-h100", (Precision.FP8_BLOCK,)),
        ("dgx-b200", BLOCKS),
        ("gb200-nvl72", BLOCKS),
        ("mi300x", (Precision.FP8_BLOCK,)),
        ("mi355x", (Precision.FP8_BLOCK, Precision.MXFP8)),
    ],
)
def test_devices_have_the_precisions_of_their_sheets(preset: str, known: tuple[Precision, ...]) -> None:
    where = find_cluster(f"{preset}:1")
    for precision in BLOCKS:
        if precision in known:
            asked(where, precision)
        else:
            with pytest.raises(InputError, match=f"no rate for products in {precision}") as error:
                asked(where, precision)
            assert where.device.name in str(error.value)
            assert "in its cluster file" in str(error.value)


def test_cores_emulate_all_of_them() -> None:
    for precision in BLOCKS:
        asked(cluster(2), precision)


def test_what_products_a_device_has_is_in_its_cluster_file(tmp_path: Path) -> None:
    where = find_cluster("dgx-b200:1")
    without = replace(where, device=replace(where.device, mx_scales=False, nvfp4_speedup=1.0))
    path = tmp_path / "cluster.toml"
    for one, has in ((where, True), (without, False)):
        path.write_text(write_cluster(one), encoding="utf-8")
        found = read_cluster(path)
        assert found.device == one.device
        assert found.device.mx_scales is has


def product(kind: str, half: str) -> Features:
    size = 8192
    return Features(kind, 2 * size**3, 3 * size * size, half=half, product=(size, size, size, 1))


def test_products_take_less_the_fewer_bits_they_have() -> None:
    model = CostModel(find_cluster("dgx-b200:1"), {})
    bf16, mx, nv = (
        model.seconds(product(kind, half))
        for kind, half in (
            ("matmul", "bfloat16"),
            ("block_scaled_matmul", "float8_e4m3fn"),
            ("block_scaled_matmul", "float4_e2m1fn_x2"),
        )
    )
    assert 0.2 * bf16 < nv < 0.9 * mx < 0.9 * 0.75 * bf16


def test_blocks_of_128_take_longer_than_tensors_where_tensor_cores_do_not_scale_them() -> None:
    model = CostModel(find_cluster("dgx-h100:1"), {})
    bf16, tensor, block = (
        model.seconds(product(kind, half))
        for kind, half in (
            ("matmul", "bfloat16"),
            ("scaled_matmul", "float8_e4m3fn"),
            ("block_scaled_matmul", "float8_e4m3fn"),
        )
    )
    assert tensor < block < bf16
