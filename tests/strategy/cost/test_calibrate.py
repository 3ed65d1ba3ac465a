"""Constants come back from noisy rows; files round trip; what is wrong is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.cost.calibrate import (
    calibrate,
    fitted_kinds,
    read_calibration,
    read_measurements,
    refine,
    write_calibration,
    write_measurements,
)
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features, Measurement, summarise
from strategy.hardware.cluster import Link
from strategy.sbp.placement import Space
from tests.campaigns import fits
from tests.support.long_parameters import long_but
from tests.support.small_plans import cluster

TRUTH = {
    CostKey("matmul"): Coefficients(5e-6, 2e-11, 3e-10),
    CostKey("gelu"): Coefficients(2e-6, 0.0, 8e-10),
    CostKey("adamw", "bfloat16", space=Space.HOST): Coefficients(3e-6, 0.0, 5e-10),
    CostKey("all_reduce", level="intra"): Coefficients(4e-6, 0.0, 1e-9),
}


def features_of(key: CostKey, flop: int, nbytes: int, hops: int) -> Features:
    return Features(key.kind, flop, nbytes, hops if key.level else 0, key.level, half=key.half, space=key.space)


def rows(seed: int, *, outliers: float = 0.1) -> list[Measurement]:
    """Rows of known constants with 3 % noise; `outliers` of them take up to ten times as long."""
    rng = np.random.default_rng(seed)
    found = []
    for key, constants in TRUTH.items():
        for nbytes, factor, hops in itertools.product((10**3, 10**4, 10**5, 10**6), (1, 10, 100), (1, 3, 7)):
            features = features_of(key, nbytes * factor, nbytes, hops)
            flop = features.flop if key.kind == "matmul" else 0
            seconds = constants.fixed_s * (features.hops or 1)
            seconds += constants.s_per_flop * flop + constants.s_per_byte * nbytes
            slow = rng.uniform(2, 10) if rng.random() < outliers else 1.0
            found.append(Measurement(features, seconds * slow * rng.lognormal(0, 0.03), 5, f"seed {seed}"))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_known_constants_are_recovered(seed: int) -> None:
    fitted = calibrate(rows(seed), cluster(8)).fitted
    for key, truth in TRUTH.items():
        found = fitted[key].coefficients
        assert found.fixed_s == pytest.approx(truth.fixed_s, rel=0.1)
        assert found.s_per_flop == pytest.approx(truth.s_per_flop, rel=0.1, abs=1e-15)
        assert found.s_per_byte == pytest.approx(truth.s_per_byte, rel=0.1)


def test_more_work_never_costs_less() -> None:
    model = calibrate(rows(1, outliers=0.3), cluster(8)).cost_model(cluster(8))
    for key in TRUTH:
        base = features_of(key, 1000, 1000, 1)
        for more in (replace(base, flop=2000), replace(base, nbytes=2000), replace(base, hops=base.hops + 2)):
            assert model.seconds(more) >= model.seconds(base)


def test_provenance_and_range() -> None:
    found = calibrate([*rows(1), *rows(2)], cluster(8), act_overhead_s=1e-5)
    matmul = found.fitted[CostKey("matmul")]
    assert matmul.sources == ("seed 1", "seed 2")
    assert 72 * 0.8 <= matmul.rows < 72  # without outliers
    assert matmul.samples == 5 * matmul.rows
    assert matmul.nbytes_range == (10**3, 10**6)
    assert 0 < matmul.spread < 10
    assert not found.extrapolates(Features("matmul", 10**4, 10**4))
    assert found.extrapolates(Features("matmul", 10**12, 10**4))
    assert found.extrapolates(Features("layer_norm", 10**4, 10**4))
    assert found.cost_model(cluster(8)).act_overhead_s == 1e-5


def test_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    found = calibrate(rows(3), cluster(8), act_overhead_s=2e-6)
    write_calibration(found, path)
    assert read_calibration(path) == found
    write_measurements(rows(3), path)
    assert read_measurements(path) == rows(3)


def test_the_key_is_fields_and_its_words_are_for_people(tmp_path: Path) -> None:
    """Kinds whose names hold our separators stay apart, in the file too."""
    odd = [
        CostKey("a@intra"), CostKey("a", level="intra"), CostKey("a:bfloat16"), CostKey("a", "bfloat16"),
        CostKey("a@host"), CostKey("a", space=Space.HOST),
    ]  # fmt: skip
    assert len({str(key) for key in odd}) == 3
    found = calibrate([Measurement(features_of(key, 0, 10**6, 1), 1e-3, 5, str(key)) for key in odd], cluster(1))
    path = tmp_path / "file.json"
    write_calibration(found, path)
    assert read_calibration(path) == found
    assert set(found.fitted) == set(odd)


def test_an_older_file_says_to_profile_anew(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"format": 1, "cluster": "c", "act_overhead_s": 0.0, "fitted": {}}))
    with pytest.raises(InputError, match=r"an older version.*sbplan profile"):
        read_calibration(path)
    path.write_text(json.dumps([{"features": {"kind": "adamw@host"}, "seconds": 1, "samples": 1, "source": ""}]))
    with pytest.raises(InputError, match=r"row 0.*older version"):
        read_measurements(path)


def test_a_kind_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_calibration(calibrate(rows(3), cluster(8)), path)
    content = json.loads(path.read_text())
    content["fitted"].append(content["fitted"][0])
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="two entries"):
        read_calibration(path)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_row_without_a_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="without a time"):
        calibrate([Measurement(Features("gelu", 1, 1), seconds, 1, "here")], cluster(1))


@pytest.mark.parametrize("junk", [None, [], "x", {}, -1, 1e400, 10**400], ids=lambda junk: str(junk)[:9])
def test_damaged_files_are_refused(tmp_path: Path, junk: object) -> None:
    path = tmp_path / "file.json"
    write_calibration(calibrate(rows(3), cluster(8)), path)
    text = path.read_text()
    for cut in (0, 1, len(text) // 2, len(text) - 3):
        path.write_text(text[:cut])
        with pytest.raises(InputError):
            read_calibration(path)
        with pytest.raises(InputError):
            read_measurements(path)
    content = json.loads(text)
    content["fitted"][0]["coefficients"]["s_per_byte"] = junk
    path.write_text(json.dumps(content))
    with pytest.raises(InputError):
        read_calibration(path)
    content["fitted"][0] = junk
    path.write_text(json.dumps(content))
    with pytest.raises(InputError):
        read_calibration(path)
    for name in ("kind", "half", "level", "space"):
        content = json.loads(text)
        content["fitted"][1][name] = junk if junk != "x" or name == "space" else 7
        path.write_text(json.dumps(content))
        with pytest.raises(InputError):
            read_calibration(path)
    features = {"kind": "gelu", "flop": 1, "nbytes": 1, "space": "device"}
    path.write_text(json.dumps([{"features": features, "seconds": junk, "samples": junk, "source": ""}]))
    with pytest.raises(InputError):
        calibrate(read_measurements(path), cluster(1))


JUNK = [None, [], "x", {}, -1, 1e400, 10**400, True, 0.5, [None]]


def places(value: object, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a document below its root; of lists the first entry."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield (*place, key)
        yield from places(item, (*place, key))


@pytest.mark.parametrize("kind", ["calibration", "measurements"])
def test_junk_anywhere_is_refused_or_can_be_used(tmp_path: Path, kind: str) -> None:
    """What is read without complaint can be refined by, and refined."""
    path = tmp_path / "file.json"
    one = calibrate(rows(3), cluster(8), act_overhead_s=2e-6)
    if kind == "calibration":
        write_calibration(one, path)
    else:
        write_measurements(rows(3)[:8], path)
    text, refused = path.read_text(), 0
    for place in places(json.loads(text)):
        for junk in JUNK:
            content = json.loads(text)
            parent = content
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = junk
            path.write_text(json.dumps(content).replace("Infinity", "1e400"))
            try:
                if kind == "calibration":
                    refine(read_calibration(path), rows(3), cluster(8), act_overhead_s=0.0)
                else:
                    refine(one, read_measurements(path), cluster(8), act_overhead_s=0.0)
            except InputError:
                refused += 1
    assert refused > 100


def test_points_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_calibration(calibrate(rows(3), cluster(8)), path)
    content = json.loads(path.read_text())
    by_kind = {entry["kind"]: entry for entry in content["fitted"]}
    for points in ([], by_kind["gelu"]["points"]):
        by_kind["matmul"]["points"] = points
        path.write_text(json.dumps(content))
        with pytest.raises(InputError, match="the points of matmul are none, or of other kinds"):
            read_calibration(path)


@pytest.mark.parametrize("cases", long_but([20, 60], 0))
def test_corrupted_rows_and_samples_do_not_move_a_fit(cases: int) -> None:
    """A seeded part of `python -m tests.campaigns fits`."""
    outcome = fits.run(cases, seed=100)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_few_samples_are_no_measurement() -> None:
    features = Features("gelu", 1, 10)
    assert summarise(features, [1.0, 9.0, 1.2, 1.1, 0.0], "here") == Measurement(features, 1.1, 5, "here")
    with pytest.raises(InputError, match=r"here: too few samples \(got 4, expected at least 5\)"):
        summarise(features, [1.0] * 4, "here")
    with pytest.raises(InputError, match=r"there: gelu of 10 bytes: too few samples \(got 4"):
        calibrate([*rows(0), Measurement(features, 1e-6, 4, "there")], cluster(8))


@pytest.mark.parametrize("hops", [1, 6])
def test_times_that_grow_late_grow(hops: int) -> None:
    """Small messages pass at once, as in a burst: bytes are not free; where all take as long, they are."""
    times = {2**11: 9.2e-5, 2**15: 8e-5, 2**19: 5.3e-3, 2**22: 8.3e-2}
    found = [Measurement(Features("rotate", 0, size, hops=hops), time, 20, "here") for size, time in times.items()]
    ((_, fitted),) = fitted_kinds(found).items()
    assert fitted.coefficients.s_per_byte == pytest.approx(8.3e-2 / 2**22, rel=0.01)
    assert hops * fitted.coefficients.fixed_s == pytest.approx(9.2e-5 - 2**11 * 8.3e-2 / 2**22, rel=0.01)
    ((_, fitted),) = fitted_kinds([replace(row, seconds=9e-5) for row in found]).items()
    assert fitted.coefficients.s_per_byte == 0


def test_of_what_goes_to_all_at_once_the_bytes_between_nodes_are_fitted(tmp_path: Path) -> None:
    """Ranks of a node among themselves take none of its link: four on two nodes send two thirds of their bytes."""
    key, sizes = CostKey("all_reduce", level="inter"), (2**12, 2**16, 2**20, 2**24)
    acts = [
        Features("all_reduce", 0, size, hops, "inter", near=near) for size in sizes for hops, near in ((1, 0), (3, 1))
    ]
    found = [Measurement(one, 1e-6 * one.hops + 1e-8 * one.nbytes * one.crossing, 9, "here") for one in acts]
    two = replace(cluster(4, per_node=2), intra=Link(1e12, 1e-6))
    calibration = calibrate(found, two)
    assert calibration.fitted[key].coefficients.s_per_byte == pytest.approx(1e-8)
    for row in found:
        assert calibration.cost_model(two).seconds(row.features) == pytest.approx(row.seconds)
    write_calibration(calibration, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == calibration
    write_measurements(found, tmp_path / "rows.json")
    text = (tmp_path / "rows.json").read_text(encoding="utf-8")
    assert [row.features for row in read_measurements(tmp_path / "rows.json")] == [row.features for row in found]
    (tmp_path / "rows.json").write_text(text.replace('"near": 1', '"near": 3'), encoding="utf-8")
    with pytest.raises(InputError, match="near is 3, of 3 other ranks"):
        read_measurements(tmp_path / "rows.json")
