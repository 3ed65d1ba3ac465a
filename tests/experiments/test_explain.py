"""`sbplan explain`: what it says for people and in JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strategy.graph.signature import Signature, op_signatures
from strategy.layout.convert import Converter, lay_out
from strategy.layout.objective import Priced
from strategy.plan.plan import Plan, read_plan, write_plan
from tests.experiments.conftest import Command
from tests.experiments.explanation.small import small_plan


def test_it_says_where_the_step_goes_and_what_binds(command: Command, plan_file: Path) -> None:
    said = command("explain", plan_file, "--json")
    found, simulated = json.loads(said.out), json.loads(command("simulate", plan_file, "--json").out)
    assert said.code == 0
    assert found["step_time_s"] == simulated["step_time_s"]
    assert sum(found["by_cause_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)
    assert sum(found["by_group_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)
    assert found["by_group_s"]["exposed communication"] == pytest.approx(simulated["exposed_communication_s"])
    memory = found["binding"]["memory"]
    assert memory["nbytes"] == max(simulated["peak_memory_bytes"])
    assert memory["limit_bytes"] == read_plan(plan_file).claims.memory_limit_bytes
    for word in ("compute", "exposed communication", "memory does not bind", "busiest rank", "busiest link"):
        assert word in said.err


def test_an_op_with_its_alternatives(command: Command, plan_file: Path) -> None:
    """What the step takes more with another signature is what laying out all else as it is takes more."""
    name = "layers.0.mlp.fc1.matmul"
    said = command("explain", plan_file, "--op", name, "--json")
    chosen, *others = json.loads(said.out)["op"]["alternatives"]
    plan = read_plan(plan_file)
    assert chosen["chosen"]
    assert chosen["added_s"] == 0
    assert not any(other["chosen"] for other in others)
    assert len(others) >= 5
    (signature,) = [s for s in _legal(plan, name) if [list(map(str, nd)) for nd in s.inputs] == others[0]["inputs"]]
    layout, converter = plan.layout, Converter(plan.cost, plan.layout.stages.placements)
    changed = lay_out(plan.graph, layout.stages, {**layout.signatures, name: signature}, converter)
    added_ns = Priced(plan.graph, changed, plan.pipeline, plan.cost).objective_ns - plan.priced.objective_ns
    assert others[0]["added_s"] == pytest.approx(added_ns / 1e9)
    assert "(chosen)" in said.err


def _legal(plan: Plan, name: str) -> tuple[Signature, ...]:
    return op_signatures(plan.graph, plan.graph.by_name[name], plan.layout.stages.placement(name).mesh)


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    write_plan(small_plan("data"), path)
    return path


@pytest.mark.parametrize("name", ["tensor", "stages", "zero", "recompute"])
def test_the_difference_of_two_plans(command: Command, name: str, small_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    write_plan(small_plan(name), other)
    said = command("explain", small_file, "--diff", other, "--json")
    found = json.loads(said.out)["diff"]
    there = json.loads(command("simulate", other, "--json").out)["step_time_s"]
    here = json.loads(command("simulate", small_file, "--json").out)["step_time_s"]
    assert found["added_s"] == pytest.approx(there - here)
    assert sum(found["added_by_cause_s"].values()) == pytest.approx(there - here, rel=0.01)
    assert abs(found["remainder_s"]) <= 0.05 * abs(there - here)
    assert ("slower" if there > here else "faster") in said.err


def test_why_not_other_degrees(command: Command, small_file: Path) -> None:
    said = command("explain", small_file, "--why-not", "tp=2", "pp=1", "--json")
    found = json.loads(said.out)["why_not"]
    assert said.code == 0
    assert found["admitted"]
    assert (found["config"]["tp"], found["config"]["pp"]) == (2, 1)
    assert sum(found["added_by_cause_s"].values()) == pytest.approx(found["added_s"], rel=0.01)
    assert "with tp=2 pp=1: dp 1, tp 2" in said.err


def test_why_not_degrees_that_cannot_be(command: Command, plan_file: Path) -> None:
    said = command("explain", plan_file, "--why-not", "tp=3", "--json")
    found = json.loads(said.out)["why_not"]
    assert (said.code, found["admitted"]) == (0, False)
    assert found["constraint"] == {"kind": "devices", "current": 2, "needed": 3, "least": True}
    assert "the number of devices: there are 2, it takes at least 3" in said.err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("tp", "not a setting"),
        ("tpp=2", "did you mean 'tp'?"),
        ("tp=0", "a whole number >= 1"),
        ("tp=2 tp=4", "given more than once"),
        ("schedule=zvb", "did you mean 'zbv'?"),
    ],
)
def test_settings_that_are_none(command: Command, plan_file: Path, asked: str, message: str) -> None:
    said = command("explain", plan_file, "--why-not", asked)
    assert said.code == 2
    assert message in said.err


def test_an_op_that_is_not_there(command: Command, plan_file: Path) -> None:
    said = command("explain", plan_file, "--op", "layers.0.mlp.fc1")
    assert said.code == 2
    assert "did you mean" in said.err
