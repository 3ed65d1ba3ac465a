"""Lines of Megatron's arguments, planned and exported: a seeded part of the campaign, with pipelines and ZeRO in it."""

from __future__ import annotations

import pytest

from tests.campaigns.trainer_files import EXPORTED, check
from tests.support.long_parameters import long_but

LINES = (2, 3, 5, 8)


@pytest.mark.parametrize("number", long_but(LINES, 0, 3))
def test_a_line_of_arguments_is_planned_and_exported_as_what_it_says(number: int) -> None:
    exercised: list[str] = []
    refused: list[str] = []
    assert list(check(number, exercised, refused)) == []
    assert refused == []
    assert EXPORTED in exercised
