"""Compiles the kernels of rows once, so that no rank waits for it: `python -m strategy.graph.warm`."""

from __future__ import annotations

import numpy as np

from strategy.graph.ops import row_kernels as kernels


def warm() -> None:
    """Runs every kernel on two rows, with the types that it always has."""
    flat, matrix, one = np.ones(2, np.float32), np.ones((2, 2), np.float32), np.float32(1)
    kernels.exp(flat, flat.copy())
    kernels.gelu(flat, flat.copy())
    kernels.gelu_slope(flat, flat, flat.copy())
    kernels.silu(flat, flat.copy())
    kernels.silu_slope(flat, flat, flat.copy())
    kernels.swiglu(flat, flat, flat.copy())
    kernels.swiglu_slope(flat, flat, flat, flat.copy(), flat.copy())
    kernels.adam(flat, *(flat.copy() for _ in range(3)), *[one] * 10)
    kernels.layer_norm(matrix, flat, flat, one, matrix.copy(), flat.copy(), flat.copy())
    results = matrix.copy(), flat.copy(), flat.copy()
    kernels.layer_norm_grad(matrix, flat, flat, flat, matrix, *results, matrix.copy())
    kernels.rms_norm(matrix, flat, one, matrix.copy(), flat.copy())
    kernels.rms_norm_grad(matrix, flat, flat, matrix, *results[:2], flat.copy())
    kernels.sum_exp(matrix, flat, flat.copy())
    kernels.exp_rows(matrix, flat, flat, one, matrix.copy(), True)
    kernels.weigh_rows(matrix.copy(), 2, 0, 0, flat.copy(), flat.copy())
    kernels.weigh_rows_again(matrix.copy(), matrix.copy(), 2, 0, 0, flat, flat)
    kernels.add_rows(matrix, np.zeros(2, np.int64), matrix.copy())


if __name__ == "__main__":
    warm()
