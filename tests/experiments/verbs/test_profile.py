"""Measuring a machine on real ranks: everything that training needs has a price."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.jobs.small_model import MODEL
from experiments.machine.machine import Rates, local_cluster
from strategy.cost.calibrate import read_calibration
from strategy.cost.measurement import CostKey, Features
from strategy.models import find_model
from strategy.passes.training import Training, training_graph
from strategy.program.program import ActKind
from tests.mpi.jobs import run, run_well

pytestmark = pytest.mark.mpi
COMMUNICATION = {CostKey(kind, level="intra") for kind in ActKind if kind.is_communication}


def op_kinds(num_micro_batches: int) -> set[CostKey]:
    return {CostKey(op.kind) for op in training_graph(find_model(MODEL), Training(16, num_micro_batches)).ops}


@pytest.mark.slow
def test_every_op_and_every_communication_is_measured(tmp_path: Path) -> None:
    ended = run_well(tmp_path, "profile", "--out", "cal.json", "--json", ranks=2)
    (document,) = ended.documents
    calibration = read_calibration(tmp_path / "cal.json")
    assert set(calibration.fitted) == op_kinds(1) | op_kinds(2) | COMMUNICATION
    rows = document["measurements"]
    told = f"{len(rows)} sizes of {len(calibration.fitted)} kinds measured on 2 ranks: cal.json"
    assert [line for line in ended.messages if "once for this machine" not in line] == [told]
    cost = calibration.cost_model(local_cluster(2, Rates(1e10, 1e10, 1e-6, 1e-5)))
    for kind, fitted in calibration.fitted.items():
        constants = (fitted.coefficients.fixed_s, fitted.coefficients.s_per_flop, fitted.coefficients.s_per_byte)
        assert all(math.isfinite(constant) and constant >= 0 for constant in constants), kind
        assert sum(constants) > 0, kind
        assert fitted.sources == ("profile",)
        mine = [row for row in rows if Features(**row["features"]).key == kind]
        assert len(mine) == fitted.rows > 0
        assert all(0 < row["seconds"] < 10 for row in mine)
    larger, smaller = Features("matmul", 10**9, 10**7), Features("matmul", 10**6, 10**5)
    assert 0 < cost.seconds(smaller) < cost.seconds(larger)


@pytest.mark.long
def test_one_rank_alone_measures_ops_only(tmp_path: Path) -> None:
    ended = run_well(tmp_path, "profile", "--out", "cal.json")
    assert ended.stdout == ""
    assert set(read_calibration(tmp_path / "cal.json").fitted) == op_kinds(1) | op_kinds(2)


@pytest.mark.long
def test_a_folder_that_is_not_there_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    ended = run(tmp_path, "profile", "--out", "no/cal.json", "--json", ranks=2)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.messages == ["sbplan: --out no/cal.json: no such folder (got 'no')"]
