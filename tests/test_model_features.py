"""Experts, tokens further ahead and codes of every precision at once: random plans train as one device does."""

from __future__ import annotations

import pytest

from tests.campaigns import model_features


@pytest.mark.long
def test_random_plans_of_newer_features_train_as_one_device_does() -> None:
    """As many as there are precisions, each once; the quotas are of all that cases draw in a longer run."""
    outcome = model_features.run(len(model_features.PRECISIONS), seed=0)
    assert outcome.failures == []
    assert {f"precision {one}" for one in model_features.PRECISIONS} <= set(outcome.coverage)
    assert {"experts", "experts shared out", "zero", "pipeline", "codes are split"} <= set(outcome.coverage)


@pytest.mark.long
def test_cases_meet_their_quotas() -> None:
    outcome = model_features.Outcome(model_features.QUOTAS)
    for number in range(36):
        plan, way = model_features.plan_of(number)
        outcome.add(str(number), (), (way, *model_features.exercised(plan)))
    assert outcome.unmet() == []
