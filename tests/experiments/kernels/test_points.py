"""The shipped tables of kernels: every row is read, once, into the set of its device, kind and precision."""

from __future__ import annotations

import csv
from collections import Counter
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from experiments.kernels.points import TABLES, KernelPoints, read_points
from strategy.base.errors import InputError
from strategy.kernels.calibration import CLASSES, KernelKind, shipped
from strategy.kernels.precision import KernelPrecision

FOLDER = Path(str(resources.files("experiments") / "reference" / "kernels"))


def rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_row_is_a_point_of_one_set(point_sets: tuple[KernelPoints, ...]) -> None:
    assert sum(len(one.seconds) for one in point_sets) == sum(len(rows(name)) for name in TABLES)
    names = Counter((one.kind, one.sheet.name, one.precision) for one in point_sets)
    assert set(names.values()) == {1}


def test_every_source_is_named(point_sets: tuple[KernelPoints, ...]) -> None:
    named = {row["source_id"] for row in rows("kernel_sources.csv")}
    used = {source for one in point_sets for source in one.sources}
    assert used <= named
    assert len(used) == 37


def test_the_kernel_of_low_latency_is_a_kind_of_its_own(point_sets: tuple[KernelPoints, ...]) -> None:
    kinds = {one.kind for one in point_sets if one.sheet.name == "B200" and one.precision is KernelPrecision.NVFP4}
    assert {KernelKind.GROUPED, KernelKind.GROUPED_LOW_LATENCY} <= kinds


def test_what_is_mostly_launch_is_not_judged(point_sets: tuple[KernelPoints, ...]) -> None:
    for one in point_sets:
        if one.kind is KernelKind.PRODUCTS:
            assert (one.seconds[one.judged] >= 10e-6).all()
        if one.kind in (KernelKind.RING, KernelKind.DIRECT):
            assert (one.sizes["size_bytes"][one.judged] >= 2**20).all()


def test_every_model_predicts_all_of_its_points_with_the_shipped_constants(
    point_sets: tuple[KernelPoints, ...],
) -> None:
    for one in point_sets:
        constants = shipped().constants(one.kind, one.precision, one.sheet)
        assert type(constants) is CLASSES[one.kind]
        found = one.model(constants)
        assert found.shape == one.seconds.shape
        assert (np.isfinite(found) & (found > 0)).all()


def test_a_device_without_a_sheet_is_refused(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.csv"):
        (tmp_path / path.name).write_text(path.read_text().replace("H200-SXM-141GB", "H900"))
    with pytest.raises(InputError, match="H900"):
        read_points(tmp_path)
