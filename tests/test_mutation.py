"""A boxing step replaced, dropped or regrouped is refused by name, or changes nothing.

Some plans here, five hundred by `python -m tests.campaigns mutation --cases 500`.
"""

from __future__ import annotations

import json
from functools import cache

import pytest

from strategy.plan.plan import Plan, plan_text
from strategy.plan.verify import verify
from tests.campaigns.mutation import MUTATIONS, judge, mutable_plan, mutants
from tests.support.long_parameters import long_but

plan_of = cache(mutable_plan)


@pytest.mark.parametrize("seed", long_but(range(3), 0))
def test_a_mutant_is_refused_by_name_or_changes_nothing(seed: int) -> None:
    plan = plan_of(seed)
    assert verify(plan) == []
    found = list(mutants(plan, seed))
    assert [(name, problem) for name, problem, _ in found if problem] == []
    assert len(found) >= 4


@pytest.mark.parametrize("seeds", long_but([1, 3], 0))
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_refused_unless_it_is_a_legal_detour(name: str, seeds: int) -> None:
    found = [m for seed in range(seeds) for m in mutants(plan_of(seed), seed, names=[name], most=1)]
    assert found
    assert [problem for _, problem, _ in found if problem] == []
    verdicts = {verdict for _, _, (verdict, _) in found}
    assert verdicts == {"accepted"} if name == "detoured" else "refused" in verdicts


def test_an_unchanged_plan_is_accepted() -> None:
    plan: Plan = plan_of(0)
    document = json.loads(plan_text(plan))
    entry = next(entry for entry in document["boxing"] if entry["steps"])
    assert judge(plan, document, entry) == ("", "accepted")
