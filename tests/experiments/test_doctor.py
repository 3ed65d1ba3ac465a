"""`sbplan doctor`: what it finds, what it misses, and the cluster file that it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.verbs import doctor
from strategy.cluster import read_cluster
from strategy.errors import EnvironmentLacks
from tests.experiments.conftest import Command


def no_mpiexec() -> str:
    raise EnvironmentLacks("mpiexec: nowhere")


def test_every_check_is_reported(command: Command, mpiexec: str) -> None:
    said = command("doctor", "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert found["ok"]
    names = [check["name"] for check in found["checks"]]
    assert names == ["cores", "memory", "python", "numpy", "mpiexec", "mpi4py", "gpu"]
    assert all(name in said.err for name in names)
    by_name = {check["name"]: check for check in found["checks"]}
    assert mpiexec in by_name["mpiexec"]["found"]
    assert all(check["hint"] for check in found["checks"] if not check["ok"])
    assert found["cluster"]["device"]["flop_per_s"] > 1e8


def test_the_cluster_is_written_once(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    assert command("doctor", "--write", path).code == 0
    cluster = read_cluster(path)
    assert cluster.device.backend == "numpy"
    before = path.read_bytes()
    said = command("doctor", "--write", path)
    assert said.code == 2
    assert f"--write {path}: exists already" in said.err
    assert path.read_bytes() == before
    assert command("doctor", "--write", tmp_path / "nowhere" / "cluster.toml").code == 2


def test_what_is_needed_and_missing(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "mpiexec_version", no_mpiexec)
    said = command("doctor", "--json")
    assert said.code == 5
    assert not json.loads(said.out)["ok"]
    assert "MISSING mpiexec: mpiexec: nowhere" in said.err
    assert 'sbplan: mpiexec is missing: pip install "sbplan[mpich]"' in said.err


def test_a_probe_that_fails_says_why() -> None:
    found = doctor.attempt("gpu", lambda: doctor.probe([sys.executable, "-c", "import nothing_such"]), hint="get it")
    assert (found.ok, found.hint) == (False, "get it")
    assert found.found == "ModuleNotFoundError: No module named 'nothing_such'"


def test_ops_are_not_there_yet(command: Command) -> None:
    said = command("doctor", "--ops")
    assert said.code == 5
    assert "'sbplan doctor --ops' is not there yet" in said.err
