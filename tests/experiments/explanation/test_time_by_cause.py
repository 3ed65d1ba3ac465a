"""Where a step goes: against a count of every instant, and against the bubble of alike stages in closed form."""

from __future__ import annotations

import pytest

from experiments.explanation.time_by_cause import IDLE, IMBALANCE, differences_by_cause_s, time_by_cause
from simulator.simulate import simulate
from strategy.layout.config import Recompute
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from tests.campaigns.causes import check
from tests.experiments.explanation.small import CONFIGS, small_plan
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, lowered, request


@pytest.mark.parametrize("pair", long_but(range(6), 0, 1, 2))
def test_causes_add_up_to_the_difference_of_two_plans(pair: int) -> None:
    assert list(check(pair, [])) == []


def test_a_pipeline_waits_as_its_schedule_says() -> None:
    """1F1B on p stages with m micro-batches leaves (p - 1) / m of what a stage computes, but for the stages' ends."""
    shares = {}
    for count in (2, 8):
        training = Training(global_batch=64 * count, num_micro_batches=count)
        asked = request(2, training, model=MlpConfig(8, 64, 64, 64))
        plan = deduced_plan(asked, config_of(training, pp=2), ("data", "tensor"))
        causes = time_by_cause(plan.priced, simulate(lowered(plan)))
        shares[count] = causes.by_cause_s[IDLE] / causes.by_group_s["compute"]
        assert causes.by_cause_s[IMBALANCE] >= 0
    assert shares[2] == pytest.approx(1 / 2, rel=0.3)
    assert shares[2] / shares[8] == pytest.approx(4, rel=0.3)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_left_is_whole_picoseconds_or_nothing(name: str, steps: int) -> None:
    """Floating point leaves no bubble of -0.000000444 ns where there is none."""
    plan = small_plan(name)
    causes = time_by_cause(plan.priced, simulate(lowered(plan), steps=steps))
    for cause in (IMBALANCE, IDLE):
        seconds = causes.by_cause_s[cause]
        assert seconds == round(seconds, 12)
        assert not str(seconds).startswith("-0.0")
    assert sum(causes.by_cause_s.values()) == pytest.approx(causes.step_time_s)


def test_what_is_computed_again_is_a_cause_of_its_own() -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    asked = request(2, training)
    made = []
    for kind in (Recompute.NONE, Recompute.FULL):
        plan = deduced_plan(asked, config_of(training, dp=2, recompute=kind), ("data", "tensor"))
        made.append(time_by_cause(plan.priced, simulate(lowered(plan))))
    more = differences_by_cause_s(*made)
    assert made[0].by_cause_s["recompute"] == 0 < more["recompute"]
    assert more["recompute"] == max(more.values())
    assert sum(more.values()) == pytest.approx(made[1].step_time_s - made[0].step_time_s, abs=1e-12)
