"""Binding stages: of alike stages those that hold most; what they say of memory is all that there is to say."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from strategy.ilp.problem import FORBIDDEN, evaluate
from strategy.layout.arrangement import Lifetime, arrange
from strategy.layout.convert import lay_out
from strategy.layout.schedule import Schedule
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.passes.training import Training
from strategy.space.binding_stages import Tenancy, fullest_stages
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.layout_problem import layout_problem
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, request

HORIZON = 100


def held(*spans: tuple[str, int, int, int]) -> list[Tenancy]:
    return [Tenancy(key, Lifetime(begin, end, blocks)) for key, begin, end, blocks in spans]


def test_of_alike_stages_the_fullest_binds() -> None:
    times = {0: [0, 1, 2], 1: [10, 11, 12], 2: [20, 21, 22]}
    tenancies = {
        stage: held(("x", own[0], own[2] + 1, 1), ("y", 0, HORIZON, 3 - stage)) for stage, own in times.items()
    }
    assert fullest_stages(tenancies, times, HORIZON) == {0}


@pytest.mark.parametrize(
    "other",
    [
        [("z", 10, 13, 1), ("y", 0, HORIZON, 1)],  # something else
        [("x", 10, 12, 1), ("y", 0, HORIZON, 1)],  # for a shorter time
        [("x", 10, 13, 2), ("y", 0, HORIZON, 1)],  # more of one, less of the other
        [("x", 10, 13, 1), ("y", 0, HORIZON, 1), ("x", 11, 12, 1)],  # one thing more
        [("x", 5, 13, 1), ("y", 0, HORIZON, 1)],  # from when no op of the stage is
    ],
)
def test_stages_that_differ_bind_both(other: list[tuple[str, int, int, int]]) -> None:
    times = {0: [0, 1, 2], 1: [10, 11, 12]}
    tenancies = {0: held(("x", 0, 3, 1), ("y", 0, HORIZON, 2)), 1: held(*other)}
    assert fullest_stages(tenancies, times, HORIZON) == {0, 1}


@pytest.mark.parametrize(
    ("schedule", "tp", "fewer"), long_but([("1f1b", 2, True), ("gpipe", 1, True), ("zb-h1", 1, False)], 1, 2)
)
def test_the_problem_holds_what_the_fullest_stage_does(schedule: Schedule, tp: int, fewer: bool) -> None:
    training = Training(global_batch=8, num_micro_batches=8)
    asked = request(6 * tp, training, model=replace(MODEL, layers=6))
    config = config_of(training, pp=6, tp=tp, schedule=schedule)
    space = space_of(asked, config, free_rules(config))
    problem = layout_problem(space, limit=2**40)
    horizon = len(space.graph.ops)
    bound = {usage.begin // horizon for node in problem.problem.nodes for usage in node.usages}
    assert (len(bound) < len(space.stages.placements)) is fewer
    rng, priced = random.Random(1), 0
    for _ in range(30):
        picks = {names: rng.choice(options) for names, options in problem.classes}
        signatures = {name: signature for names, signature in picks.items() for name in names}
        value = evaluate(problem.problem, problem.choice_of(signatures))
        if value.cost < FORBIDDEN:
            layout = lay_out(space.graph, space.stages, signatures, space.converter)
            arrangement = arrange(space.graph, layout, space.pipeline)
            assert value.peak == max(lifetime_peaks(space.graph, space.stages, arrangement))
            priced += 1
    assert priced
