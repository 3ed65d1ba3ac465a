"""The objective: where acts count, one stage by hand, and what it is next to the simulated time of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.train import program_of
from simulator.conservation import act_alone_ns
from simulator.simulate import simulate
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.graph.graph import Phase
from strategy.layout.arrangement import Pipeline
from strategy.layout.objective import account_of, message_account
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import no_times
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from strategy.space.request import Pins
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, deduced_plan, plan_by_rules, request

F, B, W, U = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT, Phase.UPDATE
MICRO, STEP = Rate.MICRO_BATCH, Rate.STEP


def made(*, dp: int = 1, tp: int = 1, pp: int = 1) -> Plan:
    training = Training(global_batch=4, num_micro_batches=2)
    config = config_of(training, dp=dp, tp=tp, pp=pp)
    return plan_by_rules(request(dp * tp * pp, training), config, ("data", "tensor"))


def piped(
    layers: int,
    *,
    stages: dict[str, int] | None = None,
    backend: str = "numpy",
    free: tuple[CostKey, ...] = (),
    **of: Any,
) -> Plan:
    """A GPT in a pipeline, one of eight samples to a micro-batch, laid out by rule; some acts may cost nothing."""
    training = Training(global_batch=8, num_micro_batches=8)
    config = config_of(training, **of)
    asked = request(config.pp, training, model=replace(MODEL, layers=layers), backend=backend)
    cost = CostModel(asked.cost.cluster, dict.fromkeys(free, Coefficients(0.0, 0.0, 0.0)))
    return deduced_plan(replace(asked, cost=cost, pins=Pins(stages=stages or {})), config, config.axes)


def test_where_acts_count() -> None:
    assert account_of(MICRO, F, 2, 1) == ("forward_ns", (2, 1))
    assert account_of(MICRO, W, 2, 0) == ("weight_ns", (2, 0))
    assert account_of(STEP, F, 2, 0) == account_of(STEP, B, 2, 0) == ("before_ns", (2,))
    assert account_of(STEP, U, 2, 0) == account_of(MICRO, U, 2, 0) == ("after_ns", (2,))


def test_where_messages_count() -> None:
    plain, turned = Pipeline(8), Pipeline(8, Schedule.ZBV, laps=2)
    assert message_account(plain, 4, MICRO, F, 1, 0) == ("forward_message_ns", (1,))
    assert message_account(plain, 4, MICRO, B, 1, 0) == ("backward_message_ns", (0,))
    assert message_account(plain, 4, STEP, F, 1, 0) == ("before_ns", (1,))
    assert message_account(turned, 4, MICRO, F, 2, 1) == ("forward_message_ns", (5,))
    assert message_account(turned, 4, MICRO, B, 2, 1) == ("backward_message_ns", (4,))
    # no pass goes on from there: its sender is busy with it
    assert message_account(plain, 4, MICRO, F, 3, 0) == ("forward_ns", (3, 0))
    assert message_account(plain, 4, MICRO, B, 0, 0) == ("backward_ns", (0, 0))
    assert message_account(turned, 4, MICRO, F, 3, 0) == ("forward_ns", (3, 0))
    assert message_account(turned, 4, MICRO, W, 1, 0) == ("weight_ns", (1, 0))


@pytest.mark.parametrize("degrees", [{"dp": 2}, {"tp": 2}, {"pp": 2}])
def test_times_are_sums_of_the_acts_of_the_program(degrees: dict[str, int]) -> None:
    """The first rank of a stage has the largest pieces; all that a stage does and sends counts on it."""
    plan = made(**degrees)
    program, count = program_of(plan), plan.config.num_micro_batches
    times = plan.priced.times
    assert times.forward_message_ns.size == plan.config.pp - 1
    for stage, placement in enumerate(plan.layout.stages.placements):
        once = many = 0
        for actor in program.actors:
            received = actor.kind is ActKind.TRANSFER and not actor.reads
            if actor.rank == placement.devices[0] and not received:
                once += act_alone_ns(program, actor) * (actor.acts_per_step == 1)
                many += act_alone_ns(program, actor) * (actor.acts_per_step == count)
        sent = times.forward_message_ns[stage : stage + 1].sum() + times.backward_message_ns[stage - 1 : stage].sum()
        assert times.before_ns[stage] + times.after_ns[stage] == once
        waited = times.forward_waited_ns[stage, 0] + times.backward_waited_ns[stage, 0]
        assert (waited > 0) == (plan.config.tp > 1)
        assert times.forward_ns[stage, 0] + times.backward_ns[stage, 0] + waited + sent == many
        if plan.config.pp == 1:
            assert plan.priced.objective_ns == count * many + once
    assert plan.priced.objective_ns / 1e9 == plan.claims.objective_s


def test_one_stream_takes_what_the_objective_says() -> None:
    """On one stage without overlap only the loader runs beside the rest."""
    plan = made(tp=2)
    simulated_s = simulate(program_of(plan), steps=3).step_time_s
    assert simulated_s == pytest.approx(plan.claims.objective_s, rel=0.05)


def test_nothing_takes_no_time() -> None:
    times = no_times(4, 2)
    assert times["forward_ns"].shape == (4, 2)
    assert times["backward_message_ns"].shape == (7,)
    assert {int(each.sum()) for each in times.values()} == {0}


ALONE = (CostKey(ActKind.LOAD), CostKey(ActKind.TRANSFER, level="intra"), CostKey(ActKind.TRANSFER, level="inter"))
"""What runs beside other acts in a pipeline whose stages have one rank each."""


@pytest.mark.parametrize("layers", long_but([5, 8], 1))
@pytest.mark.parametrize("schedule", long_but(Schedule, 0, 3, 4))
def test_a_pipeline_whose_acts_do_not_overlap_takes_what_the_objective_says(schedule: Schedule, layers: int) -> None:
    """But that an update waits for the norm over all stages, which shows where the first one is not the last to end."""
    plan = piped(layers, pp=4, schedule=schedule, backend="cupy", free=ALONE)
    simulated_s = simulate(program_of(plan), steps=1).step_time_s
    exact = layers % 4 == 0 and not schedule.splits_backward
    assert simulated_s == pytest.approx(plan.claims.objective_s, rel=1e-9 if exact else 5e-6)


def test_messages_take_what_the_objective_says() -> None:
    """Where they overlap; what is sent once per step counts in full."""
    plan = piped(8, pp=4, backend="cupy", free=ALONE[:1])
    assert plan.priced.times.overlap.allowed
    simulated_s = simulate(program_of(plan), steps=1).step_time_s
    assert simulated_s == pytest.approx(plan.claims.objective_s, rel=1e-5)
    without = piped(8, pp=4, backend="cupy", free=ALONE)
    assert plan.claims.objective_s > without.claims.objective_s


@pytest.mark.parametrize(
    "stages",
    [
        {"layers.[01].*": 0, "layers.2.*": 1, "layers.[34].*": 2, "layers.5.*": 3},
        {"layers.[0-2].*": 0, "layers.3.*": 1, "layers.4.*": 2, "layers.5.*": 3},
    ],
)
def test_four_unequal_stages_take_hardly_less_than_the_objective_says(stages: dict[str, int]) -> None:
    """Loads and messages run beside the rest."""
    plan = piped(6, pp=4, stages=stages)
    simulated_s = simulate(program_of(plan), steps=1).step_time_s
    assert simulated_s <= plan.claims.objective_s <= 1.03 * simulated_s
    times = plan.priced.times
    busy = times.forward_ns + times.backward_ns
    assert busy.max() > 1.3 * busy.min()
    every_slot_as_slow = 11 * busy.max() / 1e9
    assert every_slot_as_slow > 1.08 * simulated_s
