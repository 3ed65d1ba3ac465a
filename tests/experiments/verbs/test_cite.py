"""The verb `cite`: every method that a plan can use has its entry, and a plan's own are printed and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.citations import (
    OPTIMIZER_SOURCES,
    RECOMPUTE_SOURCES,
    SCHEDULE_SOURCES,
    bibliography,
    citations,
)
from strategy.layout.config import Context, Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.mixed_precision import Precision
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan, read_plan
from tests.experiments.conftest import Command


@pytest.fixture(scope="module")
def plan(plan_file: Path) -> Plan:
    return read_plan(plan_file)


def keys(plan: Plan) -> set[str]:
    return {one.key for one in citations(plan)}


def test_every_entry_is_whole_and_cited_by_something() -> None:
    entries = bibliography()
    for entry in entries.values():
        assert entry.count("{") == entry.count("}")
        for field in ("title", "author", "year"):
            assert re.search(rf"^  {field} = \{{.+\}},$", entry, re.MULTILINE), entry
    source = (Path(__file__).parents[3] / "experiments" / "citations.py").read_text()
    assert [key for key in entries if f'"{key}"' not in source] == []
    assert [key for key in re.findall(r'"([a-z]+\d{4}\w+)"', source) if key not in entries] == []


def test_every_schedule_optimiser_and_recomputing_has_its_sources() -> None:
    assert set(SCHEDULE_SOURCES) == set(Schedule)
    assert set(OPTIMIZER_SOURCES) == set(Optimizer)
    assert set(RECOMPUTE_SOURCES) == set(Recompute)


def test_a_data_parallel_plan_cites_no_pipeline(command: Command, plan_file: Path) -> None:
    said = command("cite", plan_file)
    assert said.code == 0
    assert said.out.count("@") == len(said.err.splitlines())
    assert "OneFlow" in said.out
    assert "Pipeline" not in said.out
    assert "Megatron" not in said.out


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"pp": 2, "schedule": Schedule.ZBV}, {"qi2023zero", "qi2024controllable"}),
        ({"pp": 2, "schedule": Schedule.INTERLEAVED, "virtual_stages": 2}, {"narayanan2021efficient"}),
        ({"zero_stage": 3}, {"rajbhandari2020zero"}),
        ({"cp": 2}, {"liu2023ring"}),
        ({"cp": 2, "context": Context.ALL_TO_ALL}, {"jacobs2023ulysses"}),
        ({"recompute": Recompute.SELECTIVE}, {"korthikanti2023reducing"}),
        ({"recompute": Recompute.FULL}, {"chen2016training"}),
        ({"offload": Offload.ALL}, {"rhu2016vdnn", "ren2021offload"}),
    ],
)
def test_what_a_configuration_adds_is_cited(plan: Plan, changes: dict[str, object], added: set[str]) -> None:
    base = replace(plan, config=replace(plan.config, zero_stage=0))
    changed = replace(base, config=replace(base.config, **changes))  # type: ignore[arg-type]
    assert keys(changed) - keys(base) == added


def test_training_is_cited(plan: Plan) -> None:
    other = replace(plan, training=replace(plan.training, optimizer=Optimizer.LAMB, precision=Precision.BF16))
    assert keys(other) - keys(plan) == {"you2020large", "micikevicius2018mixed"}
    for precision, key in {
        Precision.FP8_DELAYED: "micikevicius2022fp8",
        Precision.FP8_CURRENT: "micikevicius2022fp8",
        Precision.FP8_BLOCK: "deepseek2024v3",
        Precision.MXFP8: "rouhani2023microscaling",
        Precision.NVFP4: "nvidia2025nvfp4",
    }.items():
        coded = replace(plan, training=replace(plan.training, precision=precision))
        assert keys(coded) - keys(plan) == {"micikevicius2018mixed", key}
