"""Products of stacks of matrices, stored either way."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import DType, TensorSpec
from tests.strategy.graph.ops.acts import whole


@pytest.mark.parametrize("transpose_a", [0, 1])
@pytest.mark.parametrize("transpose_b", [0, 1])
def test_operands_may_be_stored_transposed(transpose_a: int, transpose_b: int) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 5, 6))
    stored = [np.swapaxes(x, 2, 3).copy() if flip else x for x, flip in ((a, transpose_a), (b, transpose_b))]
    attrs = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    np.testing.assert_allclose(whole("batch_matmul", stored, attrs)[0], a @ b, rtol=1e-12)
    specs = [TensorSpec(x.shape) for x in stored]
    outputs = op_definition("batch_matmul").infer(specs, (), attrs)
    assert op_definition("batch_matmul").flop(specs, outputs, attrs) == 2 * 2 * 3 * 4 * 5 * 6


def test_what_does_not_compose_is_refused() -> None:
    plain = {"transpose_a": 0, "transpose_b": 0}
    for a, b in (((2, 3, 4), (3, 4, 5)), ((3, 4), (4, 5)), ((2, 3, 4), (2, 3, 4)), ((1, 2, 3, 4), (2, 4, 5))):
        with pytest.raises(InputError, match="expected"):
            op_definition("batch_matmul").infer((TensorSpec(a), TensorSpec(b)), (), plain)
    mixed = (TensorSpec((2, 3, 4)), TensorSpec((2, 4, 5), DType.FLOAT64))
    with pytest.raises(InputError, match="one dtype"):
        op_definition("batch_matmul").infer(mixed, (), plain)
