"""The adjoint of gather adds up what was gathered several times, bit by bit as `np.add.at` does."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import Call, Workspace


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("below", [1, 3, 40])
@pytest.mark.parametrize("box", [(0, 40), (10, 25), (39, 40)])
def test_terms_of_a_row_add_up_in_their_order(axis: int, below: int, box: tuple[int, int]) -> None:
    rng = np.random.default_rng(below)
    ids = rng.integers(0, below, (6, 11)).astype(np.int32)
    shape = (5, 6, 11) if axis else (6, 11, 5)
    dy = rng.standard_normal(shape).astype(np.float32) * 10.0 ** rng.integers(-6, 6, shape).astype(np.float32)
    first, last = box
    dx = np.full((5, last - first) if axis else (last - first, 5), np.nan, np.float32)
    whole = tuple((0, size) for size in shape)
    rows = ((0, 5), box) if axis else (box, (0, 5))
    call = Call(
        xp=np,
        attrs={"axis": axis, "rows": 40},
        inputs=(ids, dy),
        outputs=(dx,),
        updates=(),
        input_boxes=(((0, 6), (0, 11)), whole),
        output_boxes=(rows,),
        workspace=Workspace(np),
    )
    REGISTRY["gather_grad"].run(call)
    wanted = np.zeros((40, 5), np.float32)
    np.add.at(wanted, ids.reshape(-1), dy.reshape(5, 66).T if axis else dy.reshape(66, 5))
    np.testing.assert_array_equal(dx.T if axis else dx, wanted[first:last])
