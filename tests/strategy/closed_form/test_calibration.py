"""FittedConstants files: what is shipped is whole, and what is broken is refused by name."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.closed_form.calibration import DECLARED, read_constants, shipped
from strategy.closed_form.constants import MAXIMUM
from strategy.closed_form.frameworks import PROFILES, REFERENCE

FILE = json.loads((resources.files("strategy.closed_form") / "published.json").read_text())


def test_there_are_at_most_a_hundred_constants_and_all_are_fitted() -> None:
    names = [constant.name for constant in DECLARED]
    assert len(names) == len(set(names)) <= MAXIMUM
    assert set(FILE["constants"]) == set(names) == set(shipped().constants)


def test_what_a_framework_names_is_a_constant() -> None:
    names = {constant.name for constant in DECLARED} | {REFERENCE}
    for profile in PROFILES.values():
        parts = (profile.slack, profile.host, profile.moved, profile.tp, profile.dp, profile.gather, profile.step)
        assert set(parts) <= names, profile.name


def test_every_constant_has_its_interval_prior_and_source() -> None:
    for name, entry in FILE["constants"].items():
        assert 0 < entry["low"] <= entry["value"] <= entry["high"], name
        assert entry["source"].split(",")[0] in FILE["provenance"]["fitted_to"], name
        assert entry["meaning"]


def test_a_constant_that_a_file_lacks_keeps_its_prior(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(FILE | {"constants": {}}))
    assert read_constants(path).constants == {constant.name: constant.prior for constant in DECLARED}


def test_a_file_may_lack_errors_of_memory_and_costs_of_guesses(tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps({key: value for key, value in FILE.items() if key not in ("memory", "guesses")}))
    found = read_constants(path)
    assert (found.memory, found.guesses) == (None, {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "not fitted constants"),
        ({"constants": {"gemm.raged": {"value": 1}}}, "did you mean 'gemm.ragged'"),
        ({"constants": {"gemm.ragged": {"value": -1}}}, "not a possible constant"),
        ({"constants": 3}, "no constants"),
        ({"strata": {}}, "no strata"),
        ({"strata": {"": {"half_width": "wide", "runs": 1, "ranges": {}}}}, "not a stratum"),
        ({"strata": {"": {"half_width": float("inf"), "runs": 1, "ranges": {}}}}, "Infinity"),
        ({"memory": FILE["memory"] | {"near": [0.0]}}, "101 ascending percentiles"),
        ({"memory": FILE["memory"] | {"far": [float(n) for n in range(101, 0, -1)]}}, "101 ascending percentiles"),
        ({"memory": FILE["memory"] | {"scales": {"nemo": 0}}}, "scales above 0"),
        ({"memory": FILE["memory"] | {"runs": "many"}}, "no errors of memory"),
        ({"memory": 3}, "no errors of memory"),
        ({"guesses": 3}, "no costs of guesses"),
        ({"guesses": {"seq": -1}}, "not a possible cost"),
    ],
)
def test_a_broken_file_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(FILE | change))
    with pytest.raises(InputError, match=message):
        read_constants(path)
