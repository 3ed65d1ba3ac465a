"""Failures and saves in the days of a training: against a history that is drawn, and what a model really saves."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from pathlib import Path

import pytest

from experiments.command.arguments import DEVICE_MTBF, RESTART, STORAGE, add_failures
from experiments.planning.training_cost import training_cost
from experiments.studies.job_failures import MOMENTS, FailureRates, read_failure_rates, size_of
from simulator.goodput import Failures, goodput, simulate_goodput
from strategy.base.errors import InputError
from strategy.graph.graph import Role
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from tests.experiments.conftest import Command
from tests.support.small_plans import MODEL, config_of, request

ASKED = request(4, Training(8), per_node=2)
SIZE = size_of(ASKED)
HOUR_S = 3600.0


def rates(*words: str) -> FailureRates | None:
    parser = argparse.ArgumentParser()
    add_failures(parser)
    return read_failure_rates(parser.parse_args(words))


def test_what_is_lost_is_what_a_random_history_loses() -> None:
    """Four GPUs that fail every 40 hours each, saves of a minute, ten minutes until training goes on."""
    found = FailureRates(40 * HOUR_S, 600.0, 1e9, 60.0).lost(SIZE, 1.0)
    assert (found.mtbf_s, found.stall_s) == (10 * HOUR_S, 60.0)
    assert found.checkpoint_interval_s == pytest.approx(math.sqrt(2 * 60 * 10 * HOUR_S), rel=0.05), "Young 1974"
    failures = Failures(10 * HOUR_S, 600.0, 60.0)
    drawn = simulate_goodput(failures, found.checkpoint_interval_s, segments=20_000, seed=1)
    assert found.goodput == pytest.approx(drawn, rel=0.005)
    for other in (0.7, 1.4):
        assert goodput(failures, other * found.checkpoint_interval_s) < found.goodput


def test_a_save_takes_what_its_bytes_take_on_the_way_to_storage() -> None:
    two_nodes = FailureRates(1e8, 0.0, 1e3)
    assert two_nodes.stall_s(SIZE) == SIZE.checkpoint_bytes / 2e3
    assert dataclasses.replace(two_nodes, save_s=7.0).stall_s(SIZE) == 7.0


@pytest.mark.parametrize("optimizer", Optimizer)
def test_saved_are_the_variables_of_a_training(optimizer: Optimizer) -> None:
    """Counters and learning rates aside; of Muon's second moments, see there."""
    assert set(MOMENTS) == set(Optimizer)
    training = Training(8, optimizer=optimizer)
    graph = planned_graph(MODEL, training, config_of(training))
    held = sum(value.spec.nbytes for value in graph.values.values() if value.role is Role.VARIABLE)
    asked = dataclasses.replace(ASKED, training=training)
    slack = 0.4 if optimizer is Optimizer.MUON else 0.01
    assert held == pytest.approx(size_of(asked).checkpoint_bytes, rel=slack)


def test_days_have_in_them_what_is_lost() -> None:
    failing = FailureRates(40 * HOUR_S, 600.0, 1e9, 60.0)
    without, found = (training_cost(SIZE, 10**6, 0.5, one) for one in (None, failing))
    assert without.lost is None
    assert found.lost == failing.lost(SIZE, 0.5)
    assert found.days == pytest.approx(without.days / found.lost.goodput)
    assert found.gpu_hours == pytest.approx(without.gpu_hours / found.lost.goodput)
    assert found.steps == without.steps


def test_a_save_comes_after_a_step_at_least() -> None:
    assert FailureRates(40 * HOUR_S, 0.0, 1e9, 0.0).lost(SIZE, 30.0).checkpoint_interval_s == 30.0


def test_flags_have_defaults_that_the_answer_tells() -> None:
    assert (DEVICE_MTBF, RESTART, STORAGE) == ("50000 h", "5 min", "2 GB/s")
    found = rates()
    assert found == FailureRates(50_000 * HOUR_S, 300.0, 2e9)
    for word in ("50,000 h (--mtbf", "5 min (--restart)", "2 GB/s of each node (--storage)"):
        assert word in found.text(SIZE)
    assert rates("--mtbf", "never") is None
    given = rates("--mtbf", "10 h", "--save", "3 s")
    assert given == FailureRates(10 * HOUR_S, 300.0, 2e9, 3.0)
    assert "a save stops training for 3 s (--save)" in given.text(SIZE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--mtbf", "1000"], "--mtbf: not a figure with a unit"),
        (["--mtbf", "0 h"], "--mtbf: not a time between failures (got '0 h', expected a time above zero, or never)"),
        (["--storage", "2"], "--storage: not a figure with a unit"),
        (["--save", "-1 s"], "--save: not a possible figure"),
        (["--restart", "soon"], "--restart: not a figure with a unit"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str) -> None:
    with pytest.raises(InputError) as told:
        rates(*words)
    assert message in str(told.value)


def test_failures_that_leave_no_time_are_told() -> None:
    with pytest.raises(InputError, match=r"no training is ever over.*a longer --mtbf"):
        FailureRates(1.0, 3600.0, 1e9, 60.0).lost(SIZE, 1.0)


@pytest.mark.long
def test_a_search_tells_days_with_failures(command: Command, tmp_path: Path) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text("[config]\ntp = 1\npp = 1\nmicro_batch = 1\nrecompute = 'none'\nzero_stage = 0\n")
    words: list[object] = [
        "search",
        "gpt-tiny",
        "--seq",
        "16",
        "--global-batch",
        "16",
        "--gpu",
        "V100-16",
        "--gpus",
        "8",
    ]
    words += ["--tokens", "1B", "--pin", pins, "--time-limit", 30, "--out", tmp_path / "plan.json", "--json"]
    said = command(*words, "--mtbf", "100 h", "--save", "30 s")
    assert said.code in (0, 4), said.err
    found = json.loads(said.out)
    training, lost = found["training"], found["training"]["lost"]
    assert lost["mtbf_s"] == 100 * HOUR_S / 8
    assert 0.9 < lost["goodput"] < 0.99
    assert training["days"] * 86400 == pytest.approx(training["steps"] * found["step_time_s"] / lost["goodput"])
    assert "assumed: a GPU fails every 100 h" in said.err
