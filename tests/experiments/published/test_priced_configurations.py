"""Prices of published configurations: which run is whose, and how the table adds up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.published.fitting import measured_rows
from experiments.published.priced_configurations import (
    PricedRun,
    ShippedConfiguration,
    as_table,
    by_cluster,
    is_of,
    priced_configurations,
    read_shipped,
)
from experiments.published.rows import Row
from strategy.closed_form.calibration import shipped
from strategy.trainers.trained import job_of

NEMO = "nemo/llama31_405b_v5.0__DGXH100_64x8x288xtp8pp8cp2.yaml"


Known = dict[str, ShippedConfiguration]


@pytest.fixture(scope="module")
def known() -> Known:
    return read_shipped()


@pytest.fixture(scope="module")
def measured() -> list[Row]:
    return measured_rows()


@pytest.fixture(scope="module")
def runs(known: Known, measured: list[Row]) -> list[PricedRun]:
    rows = [row for row in measured if row.candidates]
    return list(priced_configurations(rows, [shipped()] * len(rows), known))


@pytest.mark.long
def test_configurations_of_several_trainers_have_runs(runs: list[PricedRun]) -> None:
    assert {run.framework for run in runs} >= {"llm-foundry", "megatron-core", "nemo"}
    assert len({run.row_id for run in runs}) >= 30
    assert len({run.configuration for run in runs}) >= 15
    assert all(0 < run.low_s < run.priced_s < run.high_s for run in runs)


@pytest.mark.long
def test_a_run_is_of_its_own_configuration(runs: list[PricedRun]) -> None:
    found = {run.row_id for run in runs if run.configuration == NEMO}
    assert "mlperf_v5.0_NVIDIA_eos-dfw_n64_ngc25.01_nemo_llama31_405b" in found
    tests = {(run.configuration, run.row_id) for run in runs if run.configuration.startswith("megatron/")}
    assert ("megatron/bert__bert_mcore_tp1_pp4_vp2.yaml", "golden_bert_mcore_tp1_pp4_vp2_dev_dgx_h100") in tests
    for name, row_id in tests:
        _, _, test = name.removesuffix(".yaml").partition("__")
        assert row_id.startswith(f"golden_{test[:40]}"), (name, row_id)


@pytest.mark.parametrize(
    "change", [{"tp": 4}, {"pp": 16}, {"micro_batch": 2}, {"global_batch": 576}, {"sequence": 4096}, {"virtual": 2}]
)
def test_what_trains_otherwise_is_another_job(change: dict[str, int], known: Known, measured: list[Row]) -> None:
    read = known[NEMO].read
    row = next(one for one in measured if one.cells["row_id"].startswith("mlperf_v5.0_NVIDIA_eos-dfw_n64"))
    like = row.candidates[0].job
    job = job_of(read, like.device, like.gpus, like.gpus_per_node, like.fabric)
    assert is_of(read, job)
    assert not is_of(replace(read, **change), job)


def test_errors_are_by_trainer_and_cluster() -> None:
    one = PricedRun("a", "nemo", "H100", 8, "x.yaml", 2.0, 2.2, 1.9, 2.5)
    other = replace(one, row_id="b", priced_s=1.4, low_s=1.2, high_s=1.6)
    (first, second) = by_cluster([one, other, replace(one, gpus=16)])
    assert (first.gpus, first.runs, first.configurations, first.covered) == (8, 2, 1, 0.5)
    assert first.error == pytest.approx(0.2)
    assert first.bias == pytest.approx(-0.1)
    assert (second.gpus, second.runs) == (16, 1)
    text = as_table([first, second], of_files=True)
    assert "20.0 %  -10.0 %     50 %" in text
    assert text.splitlines()[-1].startswith("mean over lines")
