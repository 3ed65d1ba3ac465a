"""The answer of a search, for people."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.planning.answer import summary
from strategy.base.status import Status
from strategy.passes.training import Training
from tests.support.small_plans import config_of


def test_the_answer_says_how_long_samples_are() -> None:
    """A config's whole context is the default; who did not mean it sees it here."""
    config = config_of(Training(32))
    claims = SimpleNamespace(
        peak_memory_bytes=(2**30,), memory_limit_bytes=2**31, fit=None, step_time_s=1.0, objective_s=1.0,
        lower_bound_s=1.0, gap=0.0,
    )  # fmt: skip
    for tokens, text in ((131072, "a step of 32 samples of 131,072 tokens, 1.00 GiB"), (1, " of 32 samples, ")):
        model, training = SimpleNamespace(tokens_per_sample=tokens), SimpleNamespace(precision="bf16", global_batch=32)
        plan = SimpleNamespace(claims=claims, model=model, training=training, config=config)
        result: Any = SimpleNamespace(plan=plan, status=Status.OPTIMAL, search_time_s=1.0)
        assert text in summary(result, Path("plan.json"))
