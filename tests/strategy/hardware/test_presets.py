"""Presets are found by name, with any number of nodes."""

from __future__ import annotations

import pytest

from strategy.base.errors import InputError
from strategy.hardware.devices import DEVICES
from strategy.hardware.presets import PRESETS, find_cluster, preset_with
from strategy.sbp.tensor import DType


def test_presets() -> None:
    for name, one in PRESETS.items():
        per_node = one.devices_per_node
        assert find_cluster(name).devices == per_node
        assert find_cluster(f"{name}:128").devices == 128 * per_node
        assert find_cluster(f"{name}:4").name == f"{name}:4"


@pytest.mark.parametrize(
    ("name", "gpu", "per_node"),
    [("mi300x", "MI300X", 8), ("mi355x", "MI355X", 8), ("gb200-nvl72", "GB200", 72), ("gb300-nvl72", "GB300", 72)],
)
def test_presets_have_the_figures_of_their_sheets(name: str, gpu: str, per_node: int) -> None:
    found, sheet = PRESETS[name], DEVICES[gpu]
    assert (found.device.name, found.devices_per_node) == (gpu, per_node)
    assert found.device.memory_bytes == sheet.memory_bytes
    assert found.intra.bytes_per_s == sheet.link_bytes_per_s
    assert found.device.product_flop_per_s(DType.BFLOAT16) == pytest.approx(sheet.half)
    assert found.device.product_flop_per_s(DType.FLOAT8_E4M3) == pytest.approx(sheet.eight)
    assert preset_with(gpu.lower()) == name


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "four", "1e3", " 2", "2:3", "²", "9" * 5000])
def test_a_preset_needs_a_number_of_nodes(count: str) -> None:
    with pytest.raises(InputError, match="not a number of nodes"):
        find_cluster(f"dgx-a100:{count}")


@pytest.mark.parametrize("name", ["dgx-a10:4", "dgxa100", "DGX-A100", "v100-ib10:2"])
def test_an_unknown_preset_gets_a_hint(name: str) -> None:
    with pytest.raises(InputError, match=r"did you mean|known: "):
        find_cluster(name)
    with pytest.raises(InputError, match="did you mean 'dgx-a100'"):
        find_cluster("dgx-a10:4")
