"""A forged plan under the hashes of its own content is refused as bad input, or legal; it never ends as a bug.

Twenty-eight here, thousands by `python -m tests.campaigns forgeries --cases 5000`.
"""

from __future__ import annotations

import copy

import pytest

from tests.campaigns.forgeries import BASES, base, judge, run
from tests.support.long_parameters import long_but


@pytest.mark.parametrize("cases", long_but([9, 28], 0))
def test_a_forgery_is_refused_in_words_or_legal(cases: int) -> None:
    outcome = run(cases, 0)
    assert outcome.failures == []
    assert outcome.unmet() == []


@pytest.mark.parametrize("kind", BASES)
def test_what_is_not_forged_is_accepted(kind: str) -> None:
    assert judge(base(kind)) == ([], "accepted")


def test_an_op_on_no_stage_is_refused_before_the_plan_is_lowered() -> None:
    document = copy.deepcopy(base("pipeline"))
    next(iter(document["ops"].values()))["stage"] = 7
    assert judge(document) == ([], "refused")
