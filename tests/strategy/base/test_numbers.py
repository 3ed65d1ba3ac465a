"""Numbers of values: equal ones the same, told by identity once they are known."""

from __future__ import annotations

from strategy.base.numbers import Numbers
from strategy.sbp.sbp import Split


def test_equal_values_have_one_number_and_others_another() -> None:
    numbers: Numbers[Split] = Numbers()
    first, twin, other = Split(0), Split(0), Split(1)
    assert [numbers.of(split) for split in (first, other, twin, first, other)] == [0, 1, 0, 0, 1]
    assert (numbers[0], numbers[1], len(numbers)) == (first, other, 2)


def test_a_value_that_is_gone_leaves_its_identity_to_nobody() -> None:
    numbers: Numbers[tuple[int, ...]] = Numbers()
    assert [numbers.of(tuple(range(size))) for size in range(2000)] == list(range(2000))
