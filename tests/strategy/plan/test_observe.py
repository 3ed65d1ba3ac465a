"""What timelines say of costs: a simulated one gives back the constants that it was made with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.units import to_ns
from strategy.cost.calibrate import calibrate
from strategy.cost.cost import CostModel
from strategy.passes.training import Training
from strategy.plan.observe import act_overhead_s, features_by_action, observe
from strategy.plan.plan import Plan
from strategy.program.timeline import by_stream
from tests.support.small_plans import config_of, plan_by_rules, request


@cache
def small_plan() -> Plan:
    training = Training(global_batch=8, num_micro_batches=2)
    return plan_by_rules(request(2, training), config_of(training, tp=2), ("data", "tensor"))


def test_a_simulated_timeline_gives_back_its_prices() -> None:
    plan = small_plan()
    program = program_of(plan)
    rows = observe(
        simulate(program, steps=6).timeline, program, features_by_action(plan), source="simulated", steps=range(1, 6)
    )
    assert {row.features for row in rows} == set(features_by_action(plan).values())
    for row in rows:
        assert round(row.seconds * 1e9) == max(to_ns(plan.cost.seconds(row.features)), 1)
        assert row.source == "simulated"
    again = CostModel(plan.cluster, {k: f.coefficients for k, f in calibrate(rows, plan.cluster).fitted.items()})
    for row in rows:
        assert again.seconds(row.features) == pytest.approx(row.seconds, rel=0.1)


def test_only_the_steps_asked_for_are_counted() -> None:
    plan = small_plan()
    program = program_of(plan)
    timeline = simulate(program, steps=3).timeline
    features = features_by_action(plan)
    all_steps, later = (
        sum(row.samples for row in observe(timeline, program, features, source="", steps=range(first, 3)))
        for first in (0, 1)
    )
    assert later * 3 == all_steps * 2
    assert observe(timeline, program, features, source="", steps=()) == []


def test_an_ideal_timeline_has_no_overhead_and_pauses_between_acts_are_it() -> None:
    timeline = simulate(program_of(small_plan()), steps=2).timeline
    assert act_overhead_s(timeline) == 0.0
    later = {record: 10_000 * place for records in by_stream(timeline) for place, record in enumerate(records)}
    moved = [
        replace(record, start_ns=record.start_ns + later[record], end_ns=record.end_ns + later[record])
        for record in timeline.records
    ]
    assert act_overhead_s(replace(timeline, records=tuple(moved))) == pytest.approx(10e-6)


def test_acts_of_several_parts_give_no_row() -> None:
    plan = small_plan()
    program = program_of(plan)
    timeline, features = simulate(program, steps=2).timeline, features_by_action(plan)
    name, whole = next(iter(features.items()))
    parted = {**features, name: replace(whole, parts=(whole, whole))}
    rows, fewer = (observe(timeline, program, found, source="", steps=range(2)) for found in (features, parted))
    alike = sum(found == whole for found in features.values())
    lost = sum(row.samples for row in rows) - sum(row.samples for row in fewer)
    assert 0 < lost < sum(row.samples for row in rows)
    assert alike > 1 or {row.features for row in rows} - {row.features for row in fewer} == {whole}
