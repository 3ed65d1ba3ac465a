"""Kernels on withheld cells and devices: as good as is said, and the same whenever it is fitted."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import main
from experiments.kernels.points import KernelPoints
from experiments.kernels.validation import FOLDS, KernelValidation, folds_of, validate_kernels
from strategy.kernels.calibration import KernelKind
from strategy.kernels.precision import KernelPrecision

MOST_MEDIAN = {
    KernelKind.PRODUCTS: 0.08, KernelKind.ATTENTION: 0.10, KernelKind.GROUPED: 0.12,
    KernelKind.GROUPED_LOW_LATENCY: 0.14, KernelKind.RING: 0.10, KernelKind.DIRECT: 0.10,
}  # fmt: skip
THROTTLED = (KernelKind.PRODUCTS, "GB200", KernelPrecision.BF16)
"""Long products there run at half of what the same ones reach on a B200, some of them: docs/published.md."""


@pytest.fixture(scope="module")
def found() -> KernelValidation:
    return validate_kernels()


@pytest.mark.long
def test_withheld_cells_are_met_kind_by_kind(found: KernelValidation) -> None:
    for one in found.errors:
        most = 0.15 if (one.kind, one.device, one.precision) == THROTTLED else MOST_MEDIAN[one.kind]
        assert one.median <= most, one


@pytest.mark.long
def test_nine_in_ten_products_are_met_within_a_quarter(found: KernelValidation) -> None:
    products = [one for one in found.errors if one.kind is KernelKind.PRODUCTS]
    assert all(one.p90 <= 0.24 for one in products if (one.kind, one.device, one.precision) != THROTTLED)
    assert len([one for one in products if one.p90 > 0.205]) <= 2


@pytest.mark.long
def test_a_withheld_device_is_met_from_its_sheet(found: KernelValidation) -> None:
    products = [one.of_sheet for one in found.errors if one.kind is KernelKind.PRODUCTS and one.of_sheet is not None]
    assert len(products) == 12
    assert float(np.median(products)) <= 0.09
    assert max(one.of_sheet for one in found.errors if one.of_sheet is not None) <= 0.3


@pytest.mark.long
def test_the_command_fits_the_shipped_constants_and_prints_what_it_found(
    found: KernelValidation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fitted.json"
    assert main(["validate", "--kernels", "--json", "--out", str(out)]) == 0
    assert out.read_text() == (resources.files("strategy.kernels") / "fitted.json").read_text()
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["folds"] == FOLDS
    assert [one["median"] for one in document["kernels"]] == [one.median for one in found.errors]
    assert printed.err.count("H100") == sum(one.device == "H100" for one in found.errors)


def test_points_of_one_cell_are_withheld_together(point_sets: tuple[KernelPoints, ...]) -> None:
    for one in point_sets:
        folds = folds_of(one.cells, 3)
        assert set(folds.tolist()) == set(range(FOLDS))
        assert len({(cell, fold) for cell, fold in zip(one.cells, folds.tolist(), strict=True)}) == len(set(one.cells))


@pytest.mark.parametrize("other", ["--search", "--depths", "--choices"])
def test_kernels_go_with_no_other_table(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--kernels", other]) == 2
    assert "alone" in capsys.readouterr().err
