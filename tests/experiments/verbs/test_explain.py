"""`sbplan explain`: what it says for people and in JSON, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.explanation.certainty import ALONE, WITHOUT_INTERVALS
from experiments.explanation.simulated import read_simulated
from experiments.explanation.why_not import Refusal, Undecided, pinned_request, why_not
from experiments.verbs.explain import why_not_answer
from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.units import format_seconds
from strategy.cost.calibrate import Calibration, Fitted, scale, write_calibration
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.config import Offload, Recompute
from strategy.layout.convert import Converter, lay_out
from strategy.layout.objective import Priced
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.space.request import Pins
from tests.experiments.conftest import Command
from tests.experiments.explanation.small import small_plan
from tests.support.long_parameters import long_but
from tests.support.small_plans import reclaimed


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


@pytest.mark.parametrize("name", long_but(["tensor", "stages", "zero", "recompute"], 1, 2))
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


def test_why_not_degrees_that_cannot_be(command: Command, small_file: Path) -> None:
    alone = ("tp=3", "pp=1", "num_micro_batches=1", "recompute=none", "zero_stage=0", "offload=none")
    said = command("explain", small_file, "--why-not", *alone, "--json")
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


def test_where_the_time_is_over_what_is_known_is_told(command: Command, small_file: Path) -> None:
    said = command("explain", small_file, "--why-not", "tp=2", "--time-limit", "0.001", "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)["why_not"]
    assert found["admitted"] is None
    assert 0 < found["bound_s"] < json.loads(said.out)["step_time_s"]
    assert found["slower"] is None
    assert "with tp=2: not decided: the search found neither a plan nor a proof that there is none" in said.err
    assert said.err.rstrip().endswith("raise --time-limit")


def test_a_bound_beyond_the_plans_step_is_an_answer(small_file: Path) -> None:
    one = read_simulated(small_file)
    own_s = one.plan.claims.objective_s
    document, text = why_not_answer(one, "tp=2", Undecided(1.0, 2 * own_s))
    assert document["slower"] is True
    assert text.endswith("which is more than the plan's " + format_seconds(own_s))
    assert "no such step" not in why_not_answer(one, "tp=2", Undecided(1.0, None))[1]


def test_memory_that_is_short_is_told_though_the_limit_that_does_is_not_found_in_time(
    small_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object) -> None:
        raise OutOfTimeError("late")

    monkeypatch.setattr("strategy.search.search.tightest", lambda *_: (None, False))
    monkeypatch.setattr("experiments.explanation.why_not.memory_constraint", late)
    plan = read_plan(small_file)
    pins = Pins(dp=2, tp=1, pp=1, micro_batch=2, recompute=Recompute.NONE, offload=Offload.NONE, zero_stage=0)
    found = why_not(replace(pinned_request(plan, pins), memory_limit_bytes=1000), Budget.of(60))
    assert isinstance(found, Refusal)
    assert found.constraint is None
    assert "1000 B" in found.reason


def test_how_sure_it_is_which_of_two_plans_is_the_faster_one(
    command: Command, small_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    write_plan(small_plan("tensor"), other)
    pairs = [(small_file, other), (other, small_file)]
    found = []
    for one, two in pairs:
        said = command("explain", one, "--diff", two, "--json")
        best = json.loads(said.out)["best"]
        assert [plan["step_time_s"] for plan in best["plans"]] == [read_plan(p).claims.step_time_s for p in (one, two)]
        assert f"{one} is the fastest of 2 plans that were simulated, with probability" in said.err
        found.append(best["probability"])
    assert sum(found) == pytest.approx(1)
    alone = json.loads(command("explain", small_file, "--json").out)
    assert (alone["best"], alone["best_left_out"]) == (None, ALONE.reason)


@pytest.mark.long
def test_plans_next_to_it_are_compared_by_its_calibration(command: Command, tmp_path: Path) -> None:
    plan = small_plan("data")
    features = {part.key: part for seen in plan.priced.features for part in seen.parts or (seen,)}
    fitted = {
        key: Fitted(plan.cost.coefficients_of(one), 9, 90, ("here",), 0.2, (one,)) for key, one in features.items()
    }
    calibration = Calibration(plan.cluster.name, fitted)
    path, constants = tmp_path / "plan.json", tmp_path / "calibration.json"
    write_plan(reclaimed(replace(plan, cost=calibration.cost_model(plan.cluster))), path)
    write_calibration(calibration, constants)
    words = ("explain", path, "--others", "1", "--time-limit", "60", "--json")
    said = command(*words)
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["others"][0]["settings"], found["best"]) == ("dp=1 tp=2 pp=1", None)
    assert found["best_left_out"] == WITHOUT_INTERVALS.reason
    assert f"how sure it is to be the fastest is not known: {WITHOUT_INTERVALS.reason}" in said.err
    best = json.loads(command(*words, "--calibration", constants).out)["best"]
    assert best["intervals"] == "calibration"
    assert [one["config"]["tp"] for one in best["plans"]] == [1, 2]
    write_calibration(scale(calibration, 2.0), constants)
    refused = command(*words, "--calibration", constants)
    assert refused.code == 2
    assert "the plan was priced by other constants" in refused.err
