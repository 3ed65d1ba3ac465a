"""Files of kernels' constants: what is shipped is whole, what is broken is refused, and what others take from it."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.hardware.devices import DEVICES, Maker
from strategy.kernels.calibration import MOST, KernelKind, read_kernels, shipped, write_kernels
from strategy.kernels.precision import KernelPrecision
from strategy.kernels.products import ProductConstants

FILE = json.loads((resources.files("strategy.kernels") / "fitted.json").read_text())
BF16 = KernelPrecision.BF16
_LOST = {kind: {"fill_s", "slowdown"} if kind is KernelKind.PRODUCTS else set[str]() for kind in KernelKind}
"""Of constants on devices of other makers."""


def test_every_set_has_at_most_six_constants_with_interval_source_and_range() -> None:
    for one in shipped().fitted:
        assert 0 < len(one.values) <= MOST == 6
        assert one.points > len(one.values)
        assert one.sources
        assert all(low <= high for low, high in one.ranges.values())
        for name, (low, high) in one.intervals.items():
            assert 0 < low <= one.values[name] <= high, (one.kind, one.device, name)


def test_no_kind_is_fitted_twice_on_a_device() -> None:
    names = [(one.kind, one.device, one.precision) for one in shipped().fitted]
    assert len(names) == len(set(names))


def test_a_device_with_points_has_constants_of_its_own() -> None:
    (own,) = shipped().nearest(KernelKind.PRODUCTS, BF16, DEVICES["H100"])
    assert own.device == "H100"
    assert own.constants == shipped().constants(KernelKind.PRODUCTS, BF16, DEVICES["H100"])


@pytest.mark.parametrize(
    ("device", "takes"),
    [
        ("GB300", {"B200", "GB200"}),
        ("H100-96", {"H100", "H200"}),
        ("V100-32", {"A100-80"}),
        ("MI300X", {"H100", "H200"}),
    ],
)
def test_another_takes_its_generations_or_the_nearest(device: str, takes: set[str]) -> None:
    assert {one.device for one in shipped().nearest(KernelKind.PRODUCTS, BF16, DEVICES[device])} == takes


def test_what_a_generation_lacks_is_taken_from_the_nearest() -> None:
    (found,) = shipped().nearest(KernelKind.PRODUCTS, KernelPrecision.NVFP4, DEVICES["H100"])
    assert found.device == "B200"


def test_a_withheld_device_takes_the_mean_of_the_others() -> None:
    """Shares and seconds as they are; its processors load what they can multiply."""
    kind, left, sheet = KernelKind.PRODUCTS, shipped().without("B200"), DEVICES["B200"]
    found, other = left.constants(kind, BF16, sheet), left.constants(kind, BF16, DEVICES["GB200"])
    assert isinstance(found, ProductConstants)
    assert isinstance(other, ProductConstants)
    assert found != shipped().constants(kind, BF16, sheet)
    per_flop = found.cache_bytes_per_s / (sheet.half / sheet.multiprocessors)
    like = DEVICES["GB200"]
    assert per_flop == pytest.approx(other.cache_bytes_per_s / (like.half / like.multiprocessors))
    assert replace(found, cache_bytes_per_s=other.cache_bytes_per_s) == other


def test_single_precision_has_the_shares_of_bf16() -> None:
    sheet = DEVICES["A100-80"]
    single = shipped().constants(KernelKind.PRODUCTS, KernelPrecision.SINGLE, sheet)
    assert single == shipped().constants(KernelKind.PRODUCTS, BF16, sheet)


@pytest.mark.parametrize("name", DEVICES)
def test_every_sheet_has_constants_of_whatever_was_fitted_anywhere(name: str) -> None:
    """Of other makers' devices shares and launches alone."""
    nvidia = DEVICES[name].maker is Maker.NVIDIA
    for kind, precision in {(one.kind, one.precision) for one in shipped().fitted}:
        found = shipped().constants(kind, precision, DEVICES[name])
        for one in shipped().nearest(kind, precision, DEVICES[name]):
            left = {field for field in one.values if getattr(found, field) > 0}
            assert left == one.values.keys() - (set() if nvidia else _LOST[kind])


def test_what_is_written_is_read_again_and_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_kernels(one, shipped().fitted, FILE["provenance"])
    assert json.loads(one.read_text()) == FILE
    assert read_kernels(one) == shipped()
    write_kernels(two, read_kernels(one).fitted, FILE["provenance"])
    assert one.read_bytes() == two.read_bytes()


def changed(**change: object) -> dict[str, Any]:
    return FILE | {"kernels": [FILE["kernels"][0] | change, *FILE["kernels"][1:]]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"format": 9, "kernels": []}, "not fitted constants of kernels"),
        (changed(device="H900"), "no data sheet of 'H900'"),
        (changed(kind="sorting"), "sorting"),
        (changed(constants={"rate": {"value": -1, "low": 1, "high": 1}}), "not possible"),
        (changed(constants={"share": {"value": 1, "low": 1, "high": 1}}), "other constants"),
        (changed(constants={"rate": 3}), "not fitted constants"),
        (changed(ranges=None), "not fitted constants"),
    ],
)
def test_a_broken_file_is_refused(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        read_kernels(path)
