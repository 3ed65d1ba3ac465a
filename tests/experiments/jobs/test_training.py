"""What is kept of the steps of a training."""

from __future__ import annotations

import pytest

from executor.train import StepReport
from experiments.jobs.training import TIMED_STEPS, WARM_UP_STEPS, ReportedSteps


def report(step: int, step_time_s: float = 1.0) -> StepReport:
    return StepReport(step, 1.0 / step, 0.5, step % 10 == 0, step_time_s, 100.0)


def test_steps_that_warm_up_count_where_there_are_no_others() -> None:
    found = ReportedSteps()
    assert (found.step_time_s, found.last) == (None, None)
    found.add(report(1, 9.0))
    assert found.step_time_s == 9.0
    for step in range(2, 6):
        found.add(report(step, 9.0 if step <= WARM_UP_STEPS else float(step)))
    assert (found.count, found.step_time_s) == (5, 4.0)


def test_a_long_training_keeps_no_more_than_a_short_one() -> None:
    found = ReportedSteps()
    for step in range(1, TIMED_STEPS + 101):
        found.add(report(step))
    for step in range(TIMED_STEPS + 101, 3 * TIMED_STEPS + 1):
        found.add(report(step, 2.0))
    assert len(found._times_s) == TIMED_STEPS
    assert (found.count, found.skipped, found.step_time_s) == (3 * TIMED_STEPS, 3 * TIMED_STEPS // 10, 2.0)
    assert found.last == report(3 * TIMED_STEPS, 2.0)
    assert found.last.loss == pytest.approx(1 / (3 * TIMED_STEPS))
