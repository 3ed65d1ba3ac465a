"""Contenders: which of their steps count."""

from __future__ import annotations

from experiments.loop.contenders import UNDISTURBED, least_disturbed


def test_steps_in_which_a_rank_waited_do_not_count() -> None:
    assert least_disturbed({1: 0.0, 2: 0.5, 3: UNDISTURBED, 4: 0.001}) == [1, 3, 4]


def test_where_ranks_always_wait_the_better_half_counts() -> None:
    assert least_disturbed({1: 0.5, 2: 0.9, 3: 0.3, 4: 0.4, 5: 0.8}) == [1, 3, 4]
    assert least_disturbed({4: 0.5, 2: 0.5, 3: 0.5}) == [2, 3]
