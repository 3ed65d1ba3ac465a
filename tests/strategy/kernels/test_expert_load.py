"""Load of experts: what balance and a power law leave to the busiest rank."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.kernels.expert_load import busiest_rank
from tests.strategy.kernels.support import drawn
from tests.support.long_parameters import long_but

EXPERTS = np.array([8.0, 16.0, 128.0, 160.0, 256.0, 512.0])


def busiest(tokens: float, top_k: float, experts: float, ranks: float, skew: float) -> tuple[float, float]:
    found = busiest_rank(*map(np.array, (tokens, top_k, experts, ranks, skew)))
    return float(found.rows), float(found.experts)


def test_a_balanced_load_is_shared_evenly() -> None:
    assert busiest(4096, 8, 256, 16, 0) == (4096 * 8 / 16, 16)


def test_experts_without_a_row_are_not_counted() -> None:
    assert busiest(16, 1, 128, 4, 0) == pytest.approx((4, 4))


def test_one_rank_has_all_rows_whatever_the_skew() -> None:
    for skew in (0.5, 1.0, 1.2):
        assert busiest(16384, 8, 256, 1, skew)[0] == pytest.approx(16384 * 8)


def test_more_skew_and_more_ranks_leave_more_than_its_part_to_the_busiest() -> None:
    parts = [busiest(16384, 8, 256, ranks, 1.01)[0] * ranks for ranks in (2, 8, 32, 256)]
    assert parts == sorted(parts)
    rows = [busiest(16384, 8, 256, 8, skew)[0] for skew in (0.0, 0.5, 1.0, 1.2)]
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]


def test_no_expert_has_more_rows_than_there_are_tokens() -> None:
    assert busiest(100, 6, 8, 8, 1.2)[0] <= 100


@pytest.mark.parametrize(("skew", "most"), long_but([(1.2, 4096), (0.0, 32_768), (1.01, 32_768), (1.2, 32_768)], 0))
def test_more_tokens_never_leave_fewer_rows_to_the_busiest(skew: float, most: int) -> None:
    (tokens,) = drawn(2, (1, most))
    tokens = np.sort(np.unique(tokens))
    for experts in EXPERTS:
        for ranks in (2.0, experts / 2, experts):
            found = busiest_rank(*np.broadcast_arrays(tokens, 2.0, experts, ranks, skew))
            assert (np.diff(found.rows) >= -1e-9 * found.rows[1:]).all()


def test_ranks_that_do_not_divide_the_experts_are_refused() -> None:
    with pytest.raises(InputError, match="do not divide"):
        busiest(16, 1, 8, 3, 0)
