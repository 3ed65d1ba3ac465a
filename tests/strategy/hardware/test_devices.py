"""Sheets of GPUs: found by their names, and what was once read out of names is a field."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.closed_form.calibration import shipped
from strategy.closed_form.frameworks import PROFILES
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.hardware.devices import DEVICES, Generation, Maker, Wiring, named_sheet
from strategy.hardware.presets import find_cluster


def test_a_sheet_is_found_by_our_name_and_by_nvidias() -> None:
    assert all(named_sheet(name) is sheet for name, sheet in DEVICES.items())
    assert named_sheet("A100-SXM4-80GB") is DEVICES["A100-80"]
    assert named_sheet("Tesla V100-SXM2-32GB") is DEVICES["V100-32"]
    assert named_sheet("A100-of-another-make") is None
    products = [name for sheet in DEVICES.values() for name in (sheet.name, *sheet.products)]
    assert len(products) == len(set(products))


def test_a_power_cap_slows_products_whatever_the_generation_is_called() -> None:
    """The board that is held back has no measured kernels: it takes those of its generation, which differ a little."""
    free = find_cluster("dgx-h100")
    held = replace(free, device=replace(free.device, name="H100-96"))
    product = Features("matmul", 2 * 4096**3, 0, half="bfloat16", product=(4096, 4096, 4096, 1))
    times = [CostModel(one, {}).coefficients_of(product).s_per_flop for one in (free, held)]
    slower = (500 / 700) ** shipped().constants["rate.power"]
    assert times[0] / times[1] == pytest.approx(slower, rel=0.03)
    assert DEVICES["H100-96"].generation is Generation.HOPPER
    unlike = {sheet.name for sheet in DEVICES.values() if sheet.power != 1}
    assert unlike == {"H100-96", "H100-PCIE", "B300", "GB300", "MI325X", "MI355X"}


def test_nodes_of_eight_have_switches_from_ampere_on() -> None:
    nodes = [sheet for sheet in DEVICES.values() if sheet.maker is Maker.NVIDIA and sheet.domain >= 8]
    meshes = [sheet for sheet in nodes if not sheet.switched]
    assert {sheet.generation for sheet in meshes} == {Generation.VOLTA}
    assert {sheet.wiring for sheet in meshes} == {Wiring.MESH}


def test_other_makers_have_sheets_and_links_of_their_own() -> None:
    wiring = {
        maker: {sheet.wiring for sheet in DEVICES.values() if sheet.maker is maker}
        for maker in (Maker.AMD, Maker.INTEL, Maker.GOOGLE)
    }
    assert wiring == {Maker.AMD: {Wiring.MESH}, Maker.INTEL: {Wiring.MESH}, Maker.GOOGLE: {Wiring.TORUS}}
    assert named_sheet("AMD Instinct MI300X") is DEVICES["MI300X"]


@pytest.mark.parametrize("name", DEVICES)
def test_a_narrower_width_is_never_slower(name: str) -> None:
    sheet = DEVICES[name]
    assert sheet.single <= sheet.half <= sheet.eight <= sheet.four


def test_habits_of_frameworks_are_fields() -> None:
    assert {name for name, one in PROFILES.items() if one.staged_sync} == {"paddle", "paddle-dali"}
    assert {name for name, one in PROFILES.items() if one.deepspeed} == {"megatron-deepspeed", "deepspeed-zero"}
    assert {name for name, one in PROFILES.items() if one.host_loader} == {"mxnet", "pytorch-ngc"}
    slacks = {name: one.slack for name, one in PROFILES.items() if one.vision}
    assert slacks["tensorflow2"] == slacks["tensorflow"] != slacks["tensorflow-xla"]
    assert len(slacks) == 9
