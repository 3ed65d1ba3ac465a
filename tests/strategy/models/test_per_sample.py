"""Figures as functions of samples: found, and the same again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.models.per_sample import SAMPLES, figure, fitted


@pytest.mark.parametrize(
    ("at", "document"),
    [
        (lambda b: 5, 5),
        (lambda b: "silu", "silu"),
        (lambda b: 0.25, 0.25),
        (lambda b: 12 * b, {"per_sample": 12, "plus": 0}),
        (lambda b: b - 1, {"per_sample": 1, "plus": -1}),
        (lambda b: 1.0 / (49 * b), {"one_over": {"per_sample": 49, "plus": 0}}),
        (lambda b: 0.7 / b, {"over_samples": 0.7}),
        (lambda b: 3.0 * b, {"float": {"per_sample": 3, "plus": 0}}),
        (lambda b: (b, 4, 3 * b), [{"per_sample": 1, "plus": 0}, 4, {"per_sample": 3, "plus": 0}]),
    ],
)
def test_a_figure_is_found_for_all_numbers_of_samples(at: Any, document: Any) -> None:
    found = fitted([at(samples) for samples in SAMPLES])
    assert found == document
    for samples in (1, 2, 7, 96):
        assert figure(found, samples) == at(samples)


@pytest.mark.parametrize("at", [lambda b: b * b, lambda b: b // 4, lambda b: 0.5**b, lambda b: (1,) * b, str])
def test_what_grows_in_another_way_is_refused(at: Any) -> None:
    with pytest.raises(InputError, match="does not grow by so much per sample"):
        fitted([at(samples) for samples in SAMPLES])


@pytest.mark.parametrize("figures", [(math.inf,) * 3, (2**70,) * 3, (1, 2, math.nan)])
def test_what_no_document_holds_is_refused(figures: Any) -> None:
    with pytest.raises(InputError, match="a figure that cannot be recorded"):
        fitted(figures)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"per_sample": 1},
        {"per_sample": 1.5, "plus": 0},
        {"one_over": 0},
        {"float": 0.5},
        None,
        {"per_sample": 2**70, "plus": 0},
    ],
)
def test_what_is_no_figure_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="no figure of a recorded graph"):
        figure(wrong, 2)
