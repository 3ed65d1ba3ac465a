"""Predictions that are stored before their runs, on a machine that is made up: what is stored when, and the score."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executor.train import program_of
from experiments.loop import predictions, testbed
from experiments.loop.contenders import Contender
from experiments.loop.predictions import (
    EnumeratedPlan,
    ScoredPlan,
    ScoredPlans,
    StoredPrediction,
    document,
    enumerated,
    figures,
    half_widths,
    run_predictions,
)
from simulator.simulate import simulate
from strategy.base.errors import InputError
from strategy.cost.calibrate import Calibration, calibrate
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Measurement
from strategy.hardware.cluster import Cluster
from strategy.passes.training import Training
from strategy.plan.observe import features_by_action, observe
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.space.request import Request
from tests.mpi.plans import small_plan
from tests.support.small_plans import cluster, request

COUNTS = (1, 2, 4, 8)


@cache
def plans() -> tuple[EnumeratedPlan, ...]:
    return tuple(enumerated(request(2, Training(16)), COUNTS))


@pytest.mark.long
def test_every_family_has_four_plans_and_no_two_are_alike() -> None:
    families = [one.family for one in plans()]
    assert all(families.count(family) >= 4 for family in ("data", "tensor", "mixed", "pipeline"))
    assert len({one.name for one in plans()}) == len({one.plan.plan_hash for one in plans()}) == len(plans())
    assert {one.plan.ranks for one in plans()} == {2}
    one_of_each = {one.family: one.plan for one in plans() if one.plan.config.num_micro_batches == 2}
    assert all(verify(plan) == [] for plan in one_of_each.values())


SIMULATED: dict[str, tuple[tuple[Measurement, ...], float]] = {}
"""Hash of a plan -> what its acts take, and a step."""


def simulated_acts(plan: Plan) -> tuple[tuple[Measurement, ...], float]:
    """As simulated once for all rounds of all tests."""
    if plan.plan_hash not in SIMULATED:
        program = program_of(plan)
        found = simulate(program, steps=3)
        rows = observe(found.timeline, program, features_by_action(plan), plan.cost, source="", steps=range(1, 3))
        SIMULATED[plan.plan_hash] = tuple(rows), found.step_time_s
    return SIMULATED[plan.plan_hash]


@dataclass
class Machine:
    """One on which all acts take twice what the profile says, and steps a quarter longer than these add up to.

    In even rounds everything takes `even` times as long. It looks at what is stored when a round begins.
    """

    folder: Path
    even: float = 1.0
    stored: dict[str, str] = field(default_factory=dict)
    rounds: list[str] = field(default_factory=list)

    def timed(
        self,
        contenders: Sequence[Contender],
        ranks: testbed.Testbed,
        folder: Path,
        *,
        blocks: int,
        steps: int,
        progress: object,
    ) -> list[Contender]:
        self.rounds.append(folder.name)
        for path in self.folder.glob("predictions-*.json"):
            self.stored.setdefault(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
        assert len(self.stored) == len(self.rounds) // 2, "what is predicted is stored before its round"
        factor = 1.0 if len(self.rounds) % 2 else self.even
        return [self._ran(one, factor, steps) for one in contenders]

    def _ran(self, one: Contender, factor: float, steps: int) -> Contender:
        rows, step_s = simulated_acts(one.plan)
        slower = tuple(replace(row, seconds=2 * factor * row.seconds, source=one.name) for row in rows)
        return replace(one, rows=slower, undisturbed_s=(2.5 * factor * step_s,) * (steps - 1), waited=0.01)


def scored_by(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, even: float = 1.0, rounds: int = 4, **otherwise: Any
) -> tuple[ScoredPlans, Machine]:
    machine = Machine(folder, even)

    def profiled(ranks: testbed.Testbed, folder: Path) -> tuple[Cluster, Calibration]:
        known = (one.plan for one in plans())
        rows = [
            replace(row, samples=5, source="profile")
            for plan in known
            for row in machine._ran(Contender("known", plan), 0.5, 2).rows
        ]
        return cluster(2), calibrate(rows, cluster(2))

    def request_on(where: Cluster, cost: CostModel) -> Request:
        return request(2, Training(16))

    monkeypatch.setattr(predictions, "profiled", profiled)
    monkeypatch.setattr(predictions, "request_on", request_on)
    monkeypatch.setattr(predictions, "timed", machine.timed)
    counts = {"blocks": 1, "steps": 4, "micro_batches": (2,), **otherwise}
    found = run_predictions(testbed.Testbed(2), folder, rounds=rounds, progress=lambda _: None, **counts)  # type: ignore[arg-type]
    return found, machine


@pytest.mark.long
def test_what_is_predicted_of_a_round_is_stored_before_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And by the odd rounds alone: that even ones are slower is an error, all of it."""
    (tmp_path / "alike").mkdir()
    alike, machine = scored_by(monkeypatch, tmp_path / "alike")
    assert machine.rounds == ["round-1", "round-2", "round-3", "round-4"]
    said: Any = document(alike)
    assert {one["file"]: one["sha256"] for one in said["stored"]} == machine.stored
    for number, one in enumerate(said["stored"]):
        content = json.loads((tmp_path / "alike" / one["file"]).read_text())
        assert content["step_time_s"] == {plan["plan_hash"]: plan["predicted_s"][number] for plan in said["plans"]}
    assert said["error_worst"] < 0.01
    assert said["waited"] == 0.01
    (tmp_path / "slower").mkdir()
    slower, _ = scored_by(monkeypatch, tmp_path / "slower", even=1.25)
    assert [one.predicted_s for one in slower.plans] == [one.predicted_s for one in alike.plans]
    assert figures(slower.plans, slower.chosen)["error_mean"] == pytest.approx(0.2, abs=0.01)


@pytest.mark.long
def test_prices_three_times_off_are_corrected_by_plans_that_are_not_scored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, machine = scored_by(monkeypatch, tmp_path, rounds=2, off=3.0, held_out=True, micro_batches=(1, 2, 4))
    assert machine.rounds == ["round-1", "round-2"]
    names = [one.plan.name for one in found.plans]
    assert not {"data-1", "data-4", "tensor-1", "pipeline-1f1b-1", "pipeline-zb-h1-4"} & set(names)
    assert {"data-2", "tensor-2", "mixed-2", "pipeline-1f1b-4", "pipeline-zb-h1-1"} <= set(names)
    assert len(names) >= 6
    assert figures(found.plans, found.chosen)["error_mean"] < 0.02


@pytest.mark.long
def test_noise_is_how_far_off_a_plan_s_own_odd_rounds_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, _ = scored_by(monkeypatch, tmp_path, even=1.25)
    for one in found.plans:
        assert one.repeated_s == pytest.approx((one.samples_s[0][0] / 1.25,) * 2)
    assert figures(found.plans, found.chosen)["noise_worst"] == pytest.approx(0.2)
    own = score([2.0, 2.0], [[1.0], [1.2]], repeated_s=[1.1, 1.2])
    assert own.error == pytest.approx(5 / 6)
    assert own.noise == pytest.approx(0.05)


def score(
    predicted_s: Sequence[float],
    samples_s: Sequence[Sequence[float]],
    name: str = "a",
    repeated_s: Sequence[float] | None = None,
) -> ScoredPlan:
    plan, repeated = EnumeratedPlan(name, "data", small_plan("mixed")), repeated_s or predicted_s
    steps = tuple(map(tuple, samples_s))
    return ScoredPlan(plan, tuple(predicted_s), tuple(repeated), steps, (0.0,) * len(steps))


def scored(*scores: ScoredPlan) -> ScoredPlans:
    rounds = range(2, 2 * len(scores[0].predicted_s) + 1, 2)
    return ScoredPlans(scores, tuple(StoredPrediction(number, "", "", 0.0) for number in rounds))


def test_an_error_is_that_of_the_round_in_the_middle() -> None:
    """Each prediction is compared with the round that it is of."""
    one = score([1.0, 2.0, 9.0], [[1.0, 1.0, 7.0], [2.2, 2.2], [3.0]])
    assert one.error == pytest.approx(0.0)
    assert one.measured_s == pytest.approx(2.2)
    assert score([1.1, 2.2], [[1.0], [2.0]]).error == pytest.approx(0.1)


def test_the_chosen_plan_is_the_first_prediction_s() -> None:
    found = scored(score([1.0, 9.0], [[2.0], [2.0]]), score([1.5, 1.0], [[1.6], [1.6]], "b"))
    said: Any = document(found)
    assert (said["chosen"], said["regret"]) == ("a", pytest.approx(0.25))
    assert said["slowest_over_fastest"] == pytest.approx(1.25)
    assert said["error_worst"] == pytest.approx(max(abs(5.0 / 2 - 1), abs((1.5 + 1.0) / 3.2 - 1)))


def test_without_noise_every_figure_is_sure() -> None:
    found = scored(score([1.1] * 4, [[1.0] * 5] * 4), score([1.2] * 4, [[1.3] * 5] * 4, "b"))
    assert set(half_widths(found).values()) == {0.0}
    noisy = scored(score([1.0] * 4, [[1.0, 1.1], [1.2, 1.0], [0.9, 1.0], [1.0, 1.3]]))
    assert half_widths(noisy)["error_worst"] > 0.01


def test_rounds_come_in_pairs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="an even number"):
        run_predictions(
            testbed.Testbed(2), tmp_path, rounds=3, blocks=1, steps=3, micro_batches=(1,), progress=lambda _: None
        )
