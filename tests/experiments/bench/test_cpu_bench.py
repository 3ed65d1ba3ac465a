"""The comparison on a machine's cores: the floor's products by hand, the sides' protocol, a clean environment."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from executor.supervision.environment import clean_environment
from experiments.bench import cpu_bench
from experiments.bench.cpu_bench import WaitingSide, compare, lines, summary_of
from experiments.bench.cpu_blas import blas_kernel
from experiments.bench.cpu_models import CPU_MODELS
from experiments.bench.cpu_sides import END
from experiments.bench.product_floor import ProductFloor, products_of
from strategy.base.errors import EnvironmentLacks
from strategy.passes.training import Training
from strategy.plan.plan import Plan, write_plan
from tests.mpi.plans import MODEL
from tests.support.small_plans import config_of, plan_by_rules, request

PIPE = subprocess.PIPE


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One rank, 8 samples in two micro-batches."""
    training = Training(global_batch=8, num_micro_batches=2)
    return plan_by_rules(request(1, training, model=MODEL), config_of(training), ("data", "tensor"))


def test_the_products_of_a_gpt_are_those_of_its_paper_form(plan: Plan) -> None:
    """Three of 2 t h^2 per weight matrix, and attention's seven, masked: half."""
    layers, width, tokens = MODEL.layers, MODEL.width, 8 * MODEL.sequence
    weights = 3 * 2 * tokens * (12 * layers * width**2 + MODEL.vocabulary * width)
    attention = 7 * 2 * tokens * MODEL.sequence * width * layers // 2
    assert ProductFloor(plan).flop == weights + attention
    assert all(math.prod(size) for size in products_of(plan))
    assert 0 < ProductFloor(plan).measure() < 10


def test_the_environment_of_all_sides_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_CORETYPE", "MKL_DYNAMIC", "KMP_AFFINITY", "TORCH_LOGS", "LD_PRELOAD", "MALLOC_ARENA_MAX"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HOME", "/somewhere")
    found = clean_environment()
    assert not [name for name, value in found.items() if value == "x"]
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"], found["HOME"]) == ("1", "1", "/somewhere")


def test_a_blas_says_its_kernel() -> None:
    assert blas_kernel()


@pytest.mark.mpi
def test_sides_train_as_often_as_they_are_asked_and_end(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    for name in ("ours", "products"):
        command = [sys.executable, "-m", "experiments.bench.cpu_sides", name, str(tmp_path / "plan.json")]
        command += ["--out", str(tmp_path / "ours.npz")]
        side = WaitingSide(name, [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)])
        assert side.hear()["ready"]
        side.train(2)
        side.train(3)
        last = side.ask(END)
        assert [len(block) for block in side.seconds] == [2, 3]
        assert side.step_s == np.median(side.seconds[1])
        assert side.processes[0].wait(20) == 0
        if name == "ours":
            assert len(side.losses) == 5
            with np.load(last["parameters"]) as found:
                assert found["token"].shape == (MODEL.vocabulary, MODEL.width)


def test_a_summary_takes_the_faster_rival(tmp_path: Path) -> None:
    for name, weight in (("ours", 1.0), ("eager", 5.0), ("compiled", 1.25)):
        np.savez(tmp_path / name, w=np.full(3, weight))
    seconds = {"ours": 3.0, "eager": 5.0, "compiled": 4.0, "products": 2.0}
    sides = [WaitingSide(name, [], "", [[9.0], [one]], [2.0, 1.0], [7.0, one]) for name, one in seconds.items()]
    found = summary_of(sides, tmp_path)
    assert (found["rival"], found["ratio"], found["ours_over_products"]) == ("compiled", 0.75, 1.5)
    assert found["besides_products_ratio"] == 0.5
    assert found["largest_parameter_difference"] == 0.25
    told = lines({"models": {"gpt": {"single": found}}})
    assert "ours 3000.0 ms, compiled PyTorch 4000.0 ms (ratio 0.75); products alone 2000.0 ms (ours x 1.50)" in told
    json.dumps(found)


def test_without_pytorch_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_bench, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacks, match=r"pip install \"sbplan\[torch\]\""):
        compare(list(CPU_MODELS), tmp_path, 1, print)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: pip install sbplan[torch]")
@pytest.mark.parametrize("name", CPU_MODELS)
def test_both_sides_train_alike(name: str, tmp_path: Path) -> None:
    sides = []
    write_plan(cpu_bench.data_parallel_plan(name, 1), tmp_path / "plan.json")
    for side, told in (("ours", "ours"), ("torch", "eager")):
        command = [sys.executable, "-m", "experiments.bench.cpu_sides", side, str(tmp_path / "plan.json")]
        command += ["--out", str(tmp_path / f"{told}.npz")]
        sides.append(WaitingSide(told, [subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True)]))
        sides[-1].hear()
        sides[-1].train(20)
        sides[-1].ask(END)
    found = summary_of([sides[0], sides[1], sides[1], sides[1]], tmp_path)
    assert found["losses"][0] - found["losses"][1] > 0.5
    assert found["largest_loss_difference"] < 1e-3
    assert found["largest_parameter_difference"] < 1e-3
