"""The objective: weights by hand, and what it is next to the simulated time."""

from __future__ import annotations

import pytest

from executor.train import program_of
from simulator.conservation import act_alone_ns
from simulator.simulate import simulate
from strategy.layout.arrangement import Pipeline, arrange
from strategy.layout.objective import rate_weight, stage_times_ns
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from tests.support.small_plans import config_of, plan_by_rules, request


def made(*, dp: int = 1, tp: int = 1, pp: int = 1) -> Plan:
    training = Training(global_batch=4, num_micro_batches=2)
    config = config_of(training, dp=dp, tp=tp, pp=pp)
    return plan_by_rules(request(dp * tp * pp, training), config, ("data", "tensor"))


def test_weights() -> None:
    pipeline = Pipeline(8)
    assert rate_weight(Rate.STEP, pipeline, 4) == 1
    assert rate_weight(Rate.MICRO_BATCH, pipeline, 4) == 11


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"tp": 2}, {"pp": 2}])
def test_stage_times_are_sums_of_the_acts_of_the_program(degrees: dict[str, int]) -> None:
    """The first rank of a stage has the largest pieces; a transfer counts where it is sent."""
    plan = made(**degrees)
    program, pipeline, count = program_of(plan), plan.pipeline, plan.config.pp
    arrangement = arrange(plan.graph, plan.layout, pipeline)
    times = stage_times_ns(plan.graph, plan.layout, arrangement, plan.cost, pipeline)
    for stage, placement in enumerate(plan.layout.stages.placements):
        total = 0
        for actor in program.actors:
            received = actor.kind is ActKind.TRANSFER and not actor.reads
            if actor.rank == placement.devices[0] and not received:
                rate = Rate.STEP if actor.acts_per_step == 1 else Rate.MICRO_BATCH
                total += rate_weight(rate, pipeline, count) * act_alone_ns(program, actor)
        assert times[stage] == total
    assert max(times) / 1e9 == pytest.approx(plan.claims.objective_s)


def test_one_stream_takes_what_the_objective_says() -> None:
    """On one stage without overlap only the loader runs beside the rest."""
    plan = made(tp=2)
    simulated_s = simulate(program_of(plan), steps=3).step_time_s
    assert simulated_s == pytest.approx(plan.claims.objective_s, rel=0.05)
