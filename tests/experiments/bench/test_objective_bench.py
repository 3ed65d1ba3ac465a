"""`sbplan bench objective`: pairs cover what they should, the difference is split whole, and being off is a failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from experiments.bench import objective_bench, objective_problems
from experiments.bench.objective_bench import MeasuredObjective, check_close, check_covered, covered, measured, summary
from experiments.bench.objective_problems import QUOTAS, PinnedProblem, pinned_problems
from experiments.explanation.exposure import CAUSES, differences_s
from simulator.simulate import simulate
from strategy.base.errors import RunError
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.schedule import Schedule
from strategy.models import find_model
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.space.request import Pins, Request
from tests.experiments.conftest import Command
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, deduced_plan, exchange_left_alone, lowered, request

CLUSTER = replace(find_cluster("dgx-a100:2"), devices_per_node=2)
TINY = PinnedProblem(
    "gpt-tiny",
    Request(
        "gpt-tiny",
        find_model("gpt-tiny"),
        Training(8),
        CostModel(CLUSTER, {}),
        2**34,
        pins=Pins(dp=2, tp=1, pp=2, micro_batch=2, schedule=Schedule.ONE_F_ONE_B),
    ),
    config_of(Training(8, num_micro_batches=2), dp=2, pp=2),
)


def off_by(share: float, schedule: str = "1f1b") -> MeasuredObjective:
    """A pair whose objective is off by so much."""
    causes = dict.fromkeys(CAUSES, 0.0) | {"exchange": share}
    covers = frozenset({schedule, "64 GPUs or more, pipeline"})
    return MeasuredObjective("one", "dp 2", schedule, 64, 1 + share, 1.0, causes, covers, 1.0)


def test_pairs_are_drawn_by_seed_and_cover_what_they_should() -> None:
    found = [next(pinned_problems(number, 1)) for number in range(14)]
    assert found[:3] == [next(pinned_problems(number, 1)) for number in range(3)]
    assert found[0] != next(pinned_problems(0, 2))
    counts = {name: sum(name in one.covers for one in found) for name in QUOTAS}
    assert all(counts[name] >= int(share * 14) for name, share in QUOTAS.items())
    assert {one.schedule for one in found} == {objective_problems.NO_PIPELINE, *map(str, objective_problems.Schedule)}
    for one in found:
        assert one.config.tp <= one.request.cost.cluster.devices_per_node
        assert one.config.num_micro_batches <= objective_problems.MOST_MICRO_BATCHES
        assert one.config.zero_stage == one.request.pins.zero_stage


@pytest.mark.long
@exchange_left_alone()
def test_another_stands_in_for_a_pair_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategy.search.search.tightest", lambda *_: (None, False))  # which takes all of the time
    first, second = islice(pinned_problems(0, 1), 2)
    assert first != second
    assert (first.schedule, first.covers) == (second.schedule, second.covers)
    nothing_fits = replace(TINY, request=replace(TINY.request, memory_limit_bytes=1))
    found = measured(iter([nothing_fits, TINY]), 2.0)
    assert found is not None
    assert found.name == "gpt-tiny"
    assert measured(iter([nothing_fits]), 1.0) is None


def plan_of(zero_stage: int, pp: int) -> Plan:
    training = Training(global_batch=8, num_micro_batches=2)
    config = config_of(training, dp=2, tp=2, pp=pp, zero_stage=zero_stage, zero_min_size=8)
    asked = request(4 * pp, training, model=replace(MODEL, layers=4), backend="cupy", per_node=2)
    return deduced_plan(asked, config, ("data", "tensor"))


@pytest.mark.parametrize(("zero_stage", "pp"), long_but([(0, 1), (1, 2), (2, 2), (3, 1)], 2, 3))
def test_the_difference_is_split_whole(zero_stage: int, pp: int) -> None:
    plan = plan_of(zero_stage, pp)
    found = simulate(lowered(plan))
    causes = differences_s(plan.priced, found)
    assert list(causes) == list(CAUSES)
    assert sum(causes.values()) == pytest.approx(plan.priced.objective_ns / 1e9 - found.step_time_s)
    assert causes["compute"] == pytest.approx(0, abs=1e-6 * found.step_time_s)
    assert causes["exchange"] > 0
    assert causes["collectives"] >= -1e-9


def test_the_summary_is_by_schedule() -> None:
    found = summary([off_by(0.01), off_by(-0.03), off_by(0.1, "zbv")])
    assert list(found) == ["1f1b", "zbv", "all"]
    assert found["1f1b"]["worst"] == pytest.approx(0.03)
    assert found["all"]["median"] == pytest.approx(0.03)
    assert found["zbv"]["exchange"] == pytest.approx(0.1)
    assert "zbv" in objective_bench.table([off_by(0.1, "zbv")])


def test_too_little_and_too_far_are_failures() -> None:
    near = [off_by(0.02)] * 20
    check_close(near)
    assert covered(near) == {**dict.fromkeys(QUOTAS, 0), "1f1b": 20, "64 GPUs or more, pipeline": 20}
    with pytest.raises(RunError, match="cover too little: gpipe 0, oneflow 0"):
        check_covered(near, 20)
    with pytest.raises(RunError, match=r"1 of 21 plans is more than 3% off.*\+10.00% \(exchange \+10.0%\)"):
        check_close([*near, off_by(0.1)])


@pytest.mark.long
@exchange_left_alone()
def test_the_verb_prints_a_document_or_a_table(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(number: int, seed: int) -> Iterator[PinnedProblem]:
        return iter([TINY])

    monkeypatch.setattr(objective_problems, "pinned_problems", tiny)
    said = command("bench", "objective", "--time-limit", "10", "--pairs", "1", "--json")
    document = json.loads(said.out)
    (pair,) = document["pairs"]
    assert pair["objective_s"] / pair["step_time_s"] - 1 == pytest.approx(pair["off"])
    assert sum(pair["differences_s"].values()) == pytest.approx(pair["objective_s"] - pair["step_time_s"])
    assert document["covered"]["1f1b"] == 1
    assert (abs(pair["off"]) <= 0.03) is (said.code == 0)
    assert said.err.startswith("1 of 1: gpt-tiny: dp 2 tp 1, pp 2 1f1b, 2 micro-batches of 2: objective ")
    assert "covered: gpipe 0 (at least 0)" in command("bench", "objective", "--pairs", "1").out
