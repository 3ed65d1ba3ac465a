"""`sbplan report`: its figures are those of `verify` and `simulate`, of plans and of runs; it is one file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.explanation.simulated import simulated as simulated_plan
from experiments.reporting.timeline_rows import MOST_BARS, timeline_rows
from simulator.acts import acts_of
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.program.timeline import Clock, Timeline, write_timeline
from tests.experiments.conftest import Command
from tests.experiments.explanation.small import CONFIGS, small_plan


def values_of(page: Path) -> dict[str, Any]:
    """What a page shows."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_its_figures_are_those_of_verify_and_simulate(name: str, command: Command, tmp_path: Path) -> None:
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    write_plan(small_plan(name), plan)
    assert command("report", plan, "--out", page, "--others", "0").code == 0
    found = values_of(page)
    simulation = json.loads(command("simulate", plan, "--json").out)
    verification = json.loads(command("verify", plan, "--json").out)
    del simulation["simulate_time_s"]
    assert found["simulation"] == {key: simulation[key] for key in found["simulation"]}
    assert found["simulation"].keys() == simulation.keys() - {"extrapolated"}
    assert found["verification"] == verification
    assert sum(found["causes"]["seconds"].values()) == pytest.approx(simulation["step_time_s"])
    claims = read_plan(plan).claims
    assert found["claims"]["step_time_s"] == claims.step_time_s
    held = {rank: one["peak_bytes"] for one in found["memory"] for rank in one["ranks"]}
    assert [held[rank] for rank in sorted(held)] == simulation["peak_memory_bytes"]
    for one in found["memory"]:
        assert sum(nbytes for _, _, nbytes in one["tensors"]) == one["peak_bytes"]
        assert all(nbytes > 0 for _, _, nbytes in one["tensors"])
    (drawn,) = found["timelines"]["drawn"]
    assert drawn["span_ns"] == round(simulation["step_time_s"] * 1e9)
    assert max(end for row in drawn["rows"] for end in row["end_ns"]) == drawn["span_ns"]


def test_the_step_has_an_interval(command: Command, tmp_path: Path) -> None:
    """Were one constant to price all of a step, it would lie within a factor of 1.35 both ways; several average."""
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    write_plan(small_plan("data"), plan)
    assert command("report", plan, "--out", page, "--others", "0").code == 0
    found = values_of(page)
    step_s, interval = found["simulation"]["step_time_s"], found["interval"]
    assert step_s / 1.36 < interval["lo_s"] < 0.99 * step_s
    assert 1.01 * step_s < interval["hi_s"] < 1.36 * step_s
    assert interval["calibrated"] is False


@pytest.mark.long
def test_other_plans_and_why_they_lose(command: Command, tmp_path: Path) -> None:
    plan, page = tmp_path / "plan.json", tmp_path / "report.html"
    write_plan(small_plan("data"), plan)
    assert command("report", plan, "--out", page, "--others", "2", "--time-limit", "30").code == 0
    found = values_of(page)
    assert [one["settings"] for one in found["others"]] == ["dp=1 tp=2 pp=1", "dp=1 tp=1 pp=2"]
    for one in found["others"]:
        added = one["step_time_s"] - found["simulation"]["step_time_s"]
        assert sum(seconds for _, seconds in one["added_by_group_s"]) == pytest.approx(added, rel=0.01)
    best = found["best"]
    assert [one["step_time_s"] for one in best["plans"][1:]] == [one["step_time_s"] for one in found["others"]]
    assert best["plans"][0]["step_time_s"] == found["claims"]["step_time_s"]
    assert re.search(
        rf"^This plan is the fastest of .* with probability {best['probability']:.2f} ", found["best_line"]
    )


def test_a_run_is_drawn_under_its_simulation(command: Command, tmp_path: Path) -> None:
    """A timeline twice as slow as the simulated one, as if it had been measured."""
    plan, folder, page = small_plan("stages"), tmp_path / "run", tmp_path / "report.html"
    folder.mkdir()
    write_plan(plan, folder / "plan.json")
    write_timeline(slowed_down(plan), folder / "timeline.json.gz")
    assert command("report", folder, "--out", page, "--others", "0").code == 0
    found = values_of(page)
    simulated_rows, measured_rows = found["timelines"]["drawn"]
    assert [simulated_rows["clock"], measured_rows["clock"]] == ["simulated", "measured"]
    assert measured_rows["span_ns"] == 2 * simulated_rows["span_ns"]
    assert found["run"]["step_time_s"] == pytest.approx(2 * found["simulation"]["step_time_s"])
    assert {row["rank"] for row in measured_rows["rows"]} == {0, 1}


def slowed_down(plan: Plan) -> Timeline:
    timeline = simulated_plan(plan).found.timeline
    twice = tuple(
        replace(one, start_ns=2 * one.start_ns, end_ns=2 * one.end_ns, ready_ns=2 * one.ready_ns)
        for one in timeline.records
    )
    return replace(timeline, clock=Clock.MEASURED, records=twice)


def test_what_cannot_be_seen_is_joined() -> None:
    """Of more acts than may be drawn, those that are close are one bar; none begins or ends elsewhere, none is lost."""
    one = simulated_plan(small_plan("recompute"))
    acts, program = one.found.run.acts, one.program
    step_ns, ranks = round(one.found.step_time_s * 1e9), sorted({stream.rank for stream in program.streams})
    whole = timeline_rows(acts, program.actors, program.streams, {}, ranks, step_ns)
    few = timeline_rows(acts, program.actors, program.streams, {}, ranks, step_ns, most_bars=100)
    assert whole.joined_below_ns == 0 < few.joined_below_ns
    assert sum(len(row.start_ns) for row in few.rows) <= 100 < sum(len(row.start_ns) for row in whole.rows) < MOST_BARS
    for fine, coarse in zip(whole.rows, few.rows, strict=True):
        assert (fine.start_ns[0], fine.end_ns[-1]) == (coarse.start_ns[0], coarse.end_ns[-1])
        assert sum(coarse.acts) == len(fine.start_ns)
        assert set(coarse.start_ns) <= set(fine.start_ns)
        assert set(coarse.end_ns) <= set(fine.end_ns)
    assert len(acts_of(one.found.timeline)) == len(acts)


def test_the_page_is_one_file_and_the_same_each_time(command: Command, plan_file: Path, tmp_path: Path) -> None:
    pages = [tmp_path / "one.html", tmp_path / "two.html"]
    for page in pages:
        assert command("report", plan_file, "--out", page, "--others", "0").code == 0
    text = pages[0].read_text()
    assert text == pages[1].read_text()
    assert "<link rel=" not in text.replace('<link rel="icon" href="data:,">', "")
    assert " src=" not in text
    assert "default-src 'none'" in text
    assert not re.search(r"https?://", text)


def test_a_name_cannot_end_the_element_it_stands_in(command: Command, plan_file: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "<script>x<!--.json"
    hostile.write_bytes(plan_file.read_bytes())
    page = tmp_path / "report.html"
    assert command("report", hostile, "--out", page, "--others", "0").code == 0
    assert "<script>x" not in page.read_text()
    assert values_of(page)["name"] == str(hostile)


def test_a_folder_that_is_no_run(command: Command, tmp_path: Path) -> None:
    said = command("report", tmp_path, "--out", tmp_path / "report.html")
    assert said.code == 2
    assert "not a run with a timeline" in said.err
