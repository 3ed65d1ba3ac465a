"""Pipelines of real plans: all schedules learn the same, with as many micro-batches in flight as were counted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from executor.runtime.measured import measured_timeline
from executor.train import program_of
from simulator.simulate import simulate
from strategy.graph.graph import Phase
from strategy.layout.arrangement import arrange
from strategy.layout.schedule import Schedule, chunk_order
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.program.timeline import Timeline, by_stream
from strategy.sbp.tensor import Rate
from tests.mpi.jobs import run_well
from tests.support.long_parameters import long_but
from tests.support.small_plans import Trained, config_of, corpus, deduced_plan, in_float64, reclaimed, request, train

MODEL = MlpConfig(8, 5, 8, 4)
STAGES, MICRO_BATCHES = 4, 8
IN_FLIGHT = {
    Schedule.GPIPE: [8, 8, 8, 8],
    Schedule.ONE_F_ONE_B: [4, 3, 2, 1],
    Schedule.ONEFLOW: [8, 7, 4, 1],
    Schedule.INTERLEAVED: [11, 9, 7, 5],
    Schedule.ZB_H1: [4, 4, 4, 4],
    Schedule.ZBV: [8, 8, 8, 8],
}
"""Forwards whose last pass is not done, over all laps, at most, by stage."""


@cache
def plan_of(schedule: Schedule, model: MlpConfig = MODEL) -> Plan:
    training = in_float64(Training(global_batch=2 * MICRO_BATCHES, num_micro_batches=MICRO_BATCHES))
    asked = request(STAGES, training, model=model)
    return deduced_plan(asked, config_of(training, pp=STAGES, schedule=schedule), ("data", "tensor"))


@cache
def trained(schedule: Schedule) -> Trained:
    return train(plan_of(schedule), corpus(2), steps=3, record=True)


def legs_of(plan: Plan) -> dict[str, tuple[Phase, int]]:
    """Name of an op -> the phase and the lap in which it runs."""
    return {a.name: (a.phase, a.lap) for a in arrange(plan.graph, plan.layout, plan.pipeline).actions if a.op}


def in_flight(plan: Plan, timeline: Timeline) -> list[int]:
    """Most forwards of the first step, over all laps of a stage, that are begun and whose last pass is not done."""
    last = Phase.WEIGHT if plan.config.schedule.splits_backward else Phase.BACKWARD
    legs, found = legs_of(plan), []
    for stage in range(plan.config.pp):
        begin: dict[tuple[int, int], int] = {}
        end: dict[tuple[int, int], int] = {}
        for record in timeline.records:
            actor = timeline.actors[record.actor]
            phase, lap = legs.get(actor.name, (None, 0))
            key = lap, record.number
            if actor.rank != stage or record.number >= MICRO_BATCHES:
                continue
            if phase is Phase.FORWARD:
                begin[key] = min(record.start_ns, begin.get(key, record.start_ns))
            elif phase is last:
                end[key] = max(record.end_ns, end.get(key, record.end_ns))
        held = most = 0
        for _, change in sorted([*((t, 1) for t in begin.values()), *((t, -1) for t in end.values())]):
            held += change
            most = max(most, held)
        found.append(most)
    return found


@pytest.mark.parametrize("schedule", long_but(Schedule, 0, 2, 4))
def test_micro_batches_in_flight_are_those_that_were_counted(schedule: Schedule) -> None:
    plan = plan_of(schedule)
    program = program_of(plan)
    records = [row for trainer in trained(schedule).trainers for row in trainer.worker.records]
    assert in_flight(plan, measured_timeline(program, records, steps=3)) == IN_FLIGHT[schedule]
    assert in_flight(plan, simulate(program, steps=1).timeline) == IN_FLIGHT[schedule]


@pytest.mark.parametrize("schedule", list(Schedule))
def test_every_stage_runs_its_chunks_in_order(schedule: Schedule) -> None:
    plan = plan_of(schedule)
    legs, timeline = legs_of(plan), simulate(program_of(plan), steps=1).timeline
    for stream, records in zip(timeline.streams, by_stream(timeline), strict=True):
        if stream.name != "compute":
            continue
        acts = [
            (*legs[timeline.actors[r.actor].name], r.number) for r in records if timeline.actors[r.actor].name in legs
        ]
        chunks = [act for act in dict.fromkeys(acts) if act[0] is not Phase.UPDATE]
        order = chunk_order(schedule, STAGES, stream.rank, MICRO_BATCHES, plan.config.virtual_stages)
        assert chunks == [(c.phase, c.lap, c.micro_batch) for c in order]


def test_all_schedules_learn_the_same_to_the_last_bit() -> None:
    losses = {schedule: [report.loss for report in trained(schedule).reports] for schedule in Schedule}
    assert len(set(map(tuple, losses.values()))) == 1, losses


def test_a_shorter_bubble_is_a_shorter_step() -> None:
    """Of layers so wide that messages are short beside them."""
    wide = MlpConfig(8, 64, 256, 4)
    idle = {schedule: simulate(program_of(plan_of(schedule, wide))).idle_share for schedule in Schedule}
    assert idle[Schedule.ZBV] < idle[Schedule.ZB_H1] < idle[Schedule.ONE_F_ONE_B]
    assert idle[Schedule.INTERLEAVED] < idle[Schedule.ONE_F_ONE_B]


def test_laps_meet_without_a_message() -> None:
    """The turn of the V is on the last stage: the two layers there pass their activations on where they are."""
    plan = plan_of(Schedule.ZBV)
    stages = plan.layout.stages
    turn = [op for op in plan.graph.ops if op.layer == STAGES and op.phase is Phase.FORWARD]
    assert {(stages.stage_of[op.name], stages.lap_of(op.name)) for op in turn} == {(STAGES - 1, 1)}
    assert moves(plan) == {(a, b) for a in range(STAGES) for b in (a - 1, a + 1) if 0 <= b < STAGES}
    assert moves(plan_of(Schedule.INTERLEAVED)) == moves(plan) | {(STAGES - 1, 0), (0, STAGES - 1)}


def moves(plan: Plan) -> set[tuple[int, int]]:
    """Between which stages tensors of micro-batches go."""
    moved = (c for c in plan.layout.conversions if plan.graph.values[c.copy.value].rate is Rate.MICRO_BATCH)
    return {(c.source.stage, c.copy.stage) for c in moved if c.source.stage != c.copy.stage}


def test_laps_in_the_wrong_order_are_refused_with_the_cycle(tmp_path: Path) -> None:
    """The first layer of the second lap, moved to the first: it needs what the stage computes only after it."""
    plan = plan_of(Schedule.INTERLEAVED)
    laps = {op.name: plan.layout.stages.lap_of(op.name) for op in plan.graph.ops}
    swapped = {name: 1 - lap if plan.graph.by_name[name].layer in (0, 4) else lap for name, lap in laps.items()}
    stages = replace(plan.layout.stages, laps=swapped)
    wrong = reclaimed(replace(plan, layout=replace(plan.layout, stages=stages)))
    write_plan(wrong, tmp_path / "plan.json")
    said = "\n".join(verify(read_plan(tmp_path / "plan.json")))
    assert "would hang: each of these waits for the next" in said
    assert "comes before it in stream compute" in said


@pytest.mark.parametrize("schedule", list(Schedule))
def test_a_plan_file_keeps_its_laps(schedule: Schedule, tmp_path: Path) -> None:
    plan = plan_of(schedule)
    write_plan(plan, tmp_path / "plan.json")
    found = read_plan(tmp_path / "plan.json")
    assert (found.config, found.layout, found.plan_hash) == (plan.config, plan.layout, plan.plan_hash)
    assert verify(found) == []


@pytest.mark.mpi
@pytest.mark.parametrize("schedule", long_but([Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZBV], 2))
def test_processes_learn_what_threads_learn(schedule: Schedule, tmp_path: Path) -> None:
    plan = plan_of(schedule)
    write_plan(plan, tmp_path / "plan.json")
    ended = run_well(tmp_path, "train", "plan.json", "--steps", 3, "--json", ranks=STAGES)
    assert [step["loss"] for step in ended.documents[:-1]] == [report.loss for report in trained(schedule).reports]
    assert ended.documents[-1]["sent_bytes_per_step"] == list(plan.claims.sent_bytes_per_step)
