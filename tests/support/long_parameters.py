"""Cases of a test of which `make test` runs some, and `make long` the rest.

    @pytest.mark.parametrize("config", long_but(CONFIGS, 0, 3), ids=str)

Which ones every run needs is a choice: as few as catch what the others catch, each of another kind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def long_but(cases: Iterable[Any], *every_run: int) -> list[Any]:
    """Parameters of which those at these places have no mark, and the others are `long`; a tuple is one of several."""
    listed = list(cases)
    assert set(every_run) <= set(range(len(listed))), (every_run, len(listed))
    values = [case if isinstance(case, tuple) else (case,) for case in listed]
    return [
        pytest.param(*value, marks=() if place in every_run else pytest.mark.long) for place, value in enumerate(values)
    ]
