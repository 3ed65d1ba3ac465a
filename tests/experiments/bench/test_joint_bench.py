"""`sbplan bench joint`: problems cover what they should, every method is asked, and being worse is a failure."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from experiments.bench import joint_bench, joint_problems
from experiments.bench.baselines import FoundPipeline
from experiments.bench.joint_bench import JointComparison, JointResult, compare, summary, table
from experiments.bench.joint_problems import QUOTAS, JointProblem, covered
from strategy.base.errors import RunError
from strategy.hardware.presets import find_cluster
from strategy.models import find_model
from tests.experiments.conftest import Command

CLUSTER = replace(find_cluster("dgx-a100:1"), devices_per_node=4)
TINY = JointProblem("gpt-tiny", find_model("gpt-tiny"), CLUSTER, 4, frozenset({"gpt", "preset"}))


def compared(**steps: float | None) -> JointComparison:
    """A comparison with these steps."""
    results = {name: JointResult(step, None, 1.0, "") for name, step in steps.items()}
    return JointComparison("one", 8, 10**9, 1.0, 0.0, results)


def test_problems_are_drawn_by_seed_and_cover_what_they_should() -> None:
    found = joint_problems.joint_problems(50, 1)
    assert found == joint_problems.joint_problems(50, 1)
    assert found != joint_problems.joint_problems(50, 2)
    counts = covered(found)
    assert all(counts[name] >= share * 50 for name, share in QUOTAS.items())
    assert all(8 <= one.cluster.devices <= 1024 for one in found)
    assert all(10**9 <= one.model.parameters <= 7 * 10**10 for one in found)


def test_too_little_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_problems, "QUOTAS", {"512 GPUs or more": 0.9})
    with pytest.raises(RunError, match="cover too little: 512 GPUs or more"):
        joint_problems.joint_problems(10, 0)


def test_ratios_and_what_is_worse() -> None:
    one = compared(ours=2.0, same=2.0, faster=1.0, slower=4.0, nothing=None)
    assert one.worse_than == ("faster",)
    assert (one.ratio("slower"), one.ratio("nothing")) == (2.0, math.inf)
    none = compared(ours=None, same=1.0, nothing=None)
    assert none.worse_than == ("same",)
    assert none.ratio("nothing") is None


def test_the_summary_counts() -> None:
    found = summary([compared(ours=2.0, other=4.0), compared(ours=2.0, other=1.0), compared(ours=2.0, other=None)])
    assert found["other"] == {
        "ours_better": 2,
        "alike": 0,
        "ours_worse": 1,
        "no_answer": 1,
        "mean_ratio": pytest.approx(1.0),
        "time_s": 3.0,
    }
    assert "slower" in table([compared(ours=1.0, slower=2.0)])


@pytest.mark.long
def test_the_verb_prints_a_document_or_a_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_problems, "joint_problems", lambda count, seed: [TINY])
    said = command("bench", "joint", "--time-limit", "5", "--pairs", "1", "--json")
    document = json.loads(said.out)
    (pair,) = document["pairs"]
    assert list(pair["results"]) == ["ours", *joint_bench.JOINT_BASELINES]
    assert all(pair["results"][name]["step_s"] for name in joint_bench.JOINT_BASELINES)
    assert document["never_worse"] is (said.code == 0)
    assert said.err.startswith("1 of 1: gpt-tiny: ours ")


@pytest.mark.long
def test_on_few_devices_schedules_are_looked_at_too() -> None:
    """One micro-batch through four stages: gradients of weights wait, which 1F1B, all that others have, cannot."""
    found = compare(replace(TINY, global_batch=4), 30.0)
    assert found.worse_than == ()
    assert "pp 4 zb-h1" in found.results["ours"].what
    assert all((found.ratio(name) or 0.0) > 1.2 for name in joint_bench.JOINT_BASELINES)


@pytest.mark.long
def test_being_worse_is_a_failure(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_problems, "joint_problems", lambda count, seed: [TINY])
    found = compare(TINY, 5.0, {"magic": lambda pricing: FoundPipeline(1, 1, "at once")})
    assert found.worse_than == ("magic",)
    monkeypatch.setattr(joint_bench, "compare", lambda problem, time_limit_s: found)
    said = command("bench", "joint", "--pairs", "1")
    assert said.code == 6
    assert "ours takes longer than another's on gpt-tiny (magic x 0.0" in said.err
    assert "covered: gpt 1 (at least 0)" in said.out
