"""Prices of trainers' configurations, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.trainers.trainer_prices import fits_text


@pytest.mark.parametrize(
    ("fits", "probability", "text"),
    [
        (True, 0.99, "fits (probability 0.99)"),
        (False, 0.75, "does not fit (it would with probability 0.75)"),
        (True, None, "fits"),
        (False, None, "does not fit"),
    ],
)
def test_a_probability_says_what_it_is_of(fits: bool, probability: float | None, text: str) -> None:
    price: Any = SimpleNamespace(fits=fits, fit_probability=probability)
    assert fits_text(price) == text
