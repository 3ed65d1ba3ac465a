"""`sbplan doctor`: what it finds, what it misses, and the cluster file that it writes."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.verbs import doctor
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Call
from strategy.hardware.cluster_file import read_cluster
from tests.conftest import ROOT
from tests.experiments.conftest import Command


def no_mpiexec() -> str:
    raise EnvironmentLacks("mpiexec: nowhere")


def test_every_check_is_reported(command: Command, mpiexec: str) -> None:
    said = command("doctor", "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert found["ok"]
    names = [check["name"] for check in found["checks"]]
    assert names == ["cores", "memory", "python", "numpy", "mpiexec", "mpi4py", "cuda-aware mpi", "gpu"]
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


@pytest.mark.parametrize(
    ("installed", "hint"),
    [
        ((), 'pip install "sbplan[gpu]" with a GPU'),
        ((("cupy-cuda13x", "14.1.0"), ("cupyx-tools", "1.0")), 'pip install "sbplan[gpu]" with a GPU'),
        (
            (("cupy-cuda13x", "14.0.0"), ("cupy-cuda12x", "13.6.0")),
            "cupy-cuda12x 13.6.0: cupy-cuda13x 14 or newer is needed; pip uninstall cupy-cuda12x, then "
            'pip install "sbplan[gpu]" with a GPU',
        ),
        (
            (("cupy-cuda13x", "13.9.0"),),
            "cupy-cuda13x 13.9.0: cupy-cuda13x 14 or newer is needed; pip uninstall cupy-cuda13x, then "
            'pip install "sbplan[gpu]" with a GPU',
        ),
    ],
)
def test_a_wrong_cupy_is_named_with_its_remedy(
    installed: tuple[tuple[str, str], ...], hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in installed]
    monkeypatch.setattr(doctor, "distributions", lambda: there)
    assert doctor.gpu_hint() == hint


def test_the_cupy_that_is_wanted_is_that_of_the_extra() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    assert f"{doctor.CUPY}>={doctor.LEAST_CUPY}.0" in extra


def test_an_op_is_tried(command: Command) -> None:
    said = command("doctor", "--ops", "--json", "matmul")
    assert said.code == 0
    found = json.loads(said.out)
    assert found["ok"]
    (kind,) = found["kinds"]
    assert kind["kind"] == "matmul"
    assert kind["listed"] > 50
    assert kind["uneven"] > 20
    assert kind["unlisted"] > 100
    assert kind["gradients"] == kind["examples"] > 0
    assert kind["problems"] == []
    assert "matmul: " in said.err


def test_an_op_that_is_not_what_it_says_fails_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right = REGISTRY["matmul"]

    def wrong(call: Call) -> None:
        right.run(call)
        call.outputs[0][...] += 1

    monkeypatch.setitem(REGISTRY, "matmul", replace(right, run=wrong))  # type: ignore[arg-type]
    said = command("doctor", "--ops", "--json", "matmul")
    assert said.code == 6
    assert not json.loads(said.out)["ok"]
    assert "matmul, example 0, mesh [2]: S(1), S(0) -> P(sum): op as P(sum): off by" in said.err
    assert said.err.rstrip().endswith("ops are not what they say: matmul")


def test_kinds_and_backends_belong_to_the_check_of_ops(command: Command) -> None:
    assert command("doctor", "matmul").code == 2
    assert command("doctor", "--backend", "cupy").code == 2
    assert "did you mean 'matmul'" in command("doctor", "--ops", "matmull").err
    assert command("doctor", "--ops", "--backend", "abacus", "matmul").code == 2


@pytest.mark.parametrize(
    ("said", "ok"), [("moves memory of GPUs (so)", True), ("does not move memory of GPUs (no)", False)]
)
def test_what_mpi_says_of_gpus_is_told(monkeypatch: pytest.MonkeyPatch, said: str, ok: bool) -> None:
    monkeypatch.setattr(doctor, "probe", lambda command: said)
    found = doctor.cuda_mpi()
    assert (found.ok, found.found, found.needed, bool(found.hint)) == (ok, said, False, not ok)
