"""Reductions of a bucket: the same bits whoever combines, and whatever lies where."""

from __future__ import annotations

import numpy as np
import pytest

from executor.exchange.reduction import combine_rows
from executor.exchange.tensors import dtype_called
from strategy.sbp.sbp import Reduce


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_rows_are_combined_in_order_whichever_of_them_the_result_replaces(count: int, dtype: str) -> None:
    """One after the other, halves in float32; rounded once."""
    rng = np.random.default_rng(count)
    kind = dtype_called(dtype)
    rows = (100 * rng.standard_normal((count, 37))).astype(kind)
    wide = np.dtype(np.float32) if kind.itemsize == 2 else kind
    for divisor in (1,) if dtype == "int32" else (1, 3):
        expected = rows[0].astype(wide)
        for row in rows[1:]:
            expected = expected + row.astype(wide)
        expected = (expected / wide.type(divisor)).astype(kind) if divisor > 1 else expected.astype(kind)
        for own in (None, *range(count)):
            parts = [row.copy() for row in rows]
            into = np.empty_like(rows[0]) if own is None else parts[own]
            combine_rows(parts, Reduce.SUM, into, divisor)
            assert into.tobytes() == expected.tobytes(), (own, divisor)
    combine_rows([], Reduce.SUM, into)
    assert not into.any()
