"""What cells count, beside the same as whole arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strategy.ilp.problem import FORBIDDEN
from strategy.space.counts import Counts


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_counts_are_those_of_the_cells_but_for_what_is_forbidden(seed: int, weights: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(0, 2**40, (size, weights)) * (rng.random((size, weights)) < 0.3) for size in sizes]
    for part in parts:
        part[rng.random(len(part)) < 0.2] = FORBIDDEN
    found, whole = Counts.of(parts, weights), np.concatenate(parts)
    forbidden = whole[:, 0] == FORBIDDEN
    assert found.forbidden.tolist() == forbidden.tolist()
    left = np.where(forbidden[:, None], 0, whole)
    assert found.numbers.toarray().tolist() == left.tolist()
    units = rng.integers(0, 2**16, weights)
    assert (found.numbers @ units).tolist() == (left @ units).tolist(), "in whole numbers, none rounded"
    assert np.allclose(found.weighed(units / 3), left @ (units / 3))
    legal = np.flatnonzero(~forbidden)
    if len(legal):
        cells = rng.choice(legal, 5)
        assert found.total(cells).tolist() == left[cells].sum(0).tolist()
