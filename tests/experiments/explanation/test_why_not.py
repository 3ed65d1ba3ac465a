"""What stands in the way of pins: what is named does, and 1 % less of it still does."""

from __future__ import annotations

import pytest

from tests.campaigns.why_not import KINDS, check
from tests.support.long_parameters import long_but


@pytest.mark.parametrize("search", long_but(range(len(KINDS))), ids=KINDS)
def test_what_is_named_admits_a_plan_and_one_percent_less_does_not(search: int) -> None:
    exercised: list[str] = []
    assert list(check(search, exercised)) == []
    assert exercised == [KINDS[search]]
