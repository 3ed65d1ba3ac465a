"""Several plans timed in turn, in one job of real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.jobs.blocks import parse
from strategy.program.timeline import read_timeline
from tests.mpi.jobs import Job
from tests.mpi.plans import write_small_plan

pytestmark = pytest.mark.mpi


@pytest.mark.long
def test_plans_take_turns_and_each_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plans = [write_small_plan(tmp_path, layout) for layout in ("mixed", "tensor")]
    counts = ("--blocks", 3, "--steps", 2, "--out", tmp_path)
    ended = Job(tmp_path, *plans, *counts, ranks=2, module="experiments.jobs.blocks").wait()
    assert (ended.code, ended.stdout) == (0, "")
    assert ended.messages == [f"block {block}/3: {plan.stem}" for block in (1, 2, 3) for plan in plans]
    runs = [json.loads((tmp_path / f"{plan.stem}.run.json").read_text()) for plan in plans]
    for plan, found in zip(plans, runs, strict=True):
        assert len(found["step_time_s"]) == len(found["loss"]) == 6
        assert min(found["step_time_s"]) > 0
        assert len(found["waited_s"]) == 6
        assert min(found["waited_s"]) >= 0
        assert len(set(found["pids"])) == 2
        assert found["loss"][-1] < found["loss"][0]
        timeline = read_timeline(tmp_path / f"{plan.stem}.timeline.json.gz")
        assert timeline.steps == 6
        acts = {actor: 0 for actor in range(len(timeline.actors))}
        for record in timeline.records:
            acts[record.actor] += 1
        assert all(count >= 6 * timeline.actors[actor].acts_per_step for actor, count in acts.items())
    assert runs[0]["loss"] == pytest.approx(runs[1]["loss"], rel=1e-4)
    assert runs[0]["pids"] == runs[1]["pids"]


@pytest.mark.long
def test_a_plan_of_other_ranks_is_told_once(tmp_path: Path) -> None:
    plans = [write_small_plan(tmp_path, layout) for layout in ("mixed", "stages")]
    counts = ("--blocks", 1, "--steps", 1, "--out", tmp_path)
    ended = Job(tmp_path, *plans, *counts, ranks=2, module="experiments.jobs.blocks").wait()
    assert (ended.code, ended.stdout, len(ended.messages)) == (2, "", 1)
    assert "got '2 processes', expected 4" in ended.stderr
    assert list(tmp_path.glob("*.run.json")) == []


def test_counts_are_numbers() -> None:
    found = parse(["a.json", "b.json", "--blocks", "3", "--steps", "2", "--out", "x"])
    assert (found.plans, found.blocks, found.steps) == ([Path("a.json"), Path("b.json")], 3, 2)
    with pytest.raises(SystemExit):
        parse(["a.json", "--blocks", "many", "--steps", "2", "--out", "x"])


@pytest.mark.long
def test_a_timeline_that_takes_longer_than_a_stall_to_write_is_none(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    counts = ("--blocks", 1, "--steps", 2, "--out", tmp_path)
    ended = Job(tmp_path, plan, *counts, ranks=2, module="tests.mpi.slow_timelines").wait()
    assert (ended.code, ended.messages) == (0, ["block 1/1: mixed-float32"])
