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
from strategy.cost.measurement import Features, Measurement
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
        simulate(program, steps=6).timeline,
        program,
        features_by_action(plan),
        plan.cost,
        source="simulated",
        steps=range(1, 6),
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
        sum(row.samples for row in observe(timeline, program, features, plan.cost, source="", steps=range(first, 3)))
        for first in (0, 1)
    )
    assert later * 3 == all_steps * 2
    assert observe(timeline, program, features, plan.cost, source="", steps=()) == []


def test_an_ideal_timeline_has_no_overhead_and_pauses_between_acts_are_it() -> None:
    timeline = simulate(program_of(small_plan()), steps=2).timeline
    assert act_overhead_s(timeline) == 0.0
    later = {record: 10_000 * place for records in by_stream(timeline) for place, record in enumerate(records)}
    moved = [
        replace(record, start_ns=record.start_ns + later[record], end_ns=record.end_ns + later[record])
        for record in timeline.records
    ]
    assert act_overhead_s(replace(timeline, records=tuple(moved))) == pytest.approx(10e-6)


def test_parts_of_an_act_share_its_time_by_their_prices() -> None:
    """Of two that are alike each has half; of two that are not, as much as its price is."""
    plan = small_plan()
    program = program_of(plan)
    timeline, features = simulate(program, steps=2).timeline, features_by_action(plan)
    whole = next(one for one in features.values() if one.level)
    alone = {row.features: row for row in observe(timeline, program, features, plan.cost, source="", steps=range(2))}
    small, large = replace(whole, nbytes=1), replace(whole, nbytes=8 * whole.nbytes)

    def parted(*parts: Features) -> dict[Features, Measurement]:
        found = {key: replace(one, parts=parts) if one == whole else one for key, one in features.items()}
        rows = observe(timeline, program, found, plan.cost, source="", steps=range(2))
        return {row.features: row for row in rows}

    halves = parted(whole, whole)[whole]
    assert (halves.samples, halves.seconds) == (2 * alone[whole].samples, pytest.approx(alone[whole].seconds / 2))
    unlike = parted(small, large)
    assert unlike[small].seconds + unlike[large].seconds == pytest.approx(alone[whole].seconds, rel=1e-3)
    prices = [plan.cost.seconds(one) for one in (small, large)]
    assert unlike[large].seconds / unlike[small].seconds == pytest.approx(prices[1] / prices[0], rel=1e-2)
