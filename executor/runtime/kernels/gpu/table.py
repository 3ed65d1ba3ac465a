"""Which ops have kernels: an act becomes launches of ours, products or attention; else the array module runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor.runtime.kernels.gpu import (
    arithmetic,
    block_codes,
    codes,
    elementwise,
    norms,
    products,
    ragged,
    reductions,
    rows,
    slices,
    update,
)
from executor.runtime.kernels.gpu.attention import AttentionAct, attention, attention_grad
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.products import MatrixProduct
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.update import AdamUpdate
from strategy.graph.ops.base import Call
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import DType

LAUNCHES: Mapping[str, Callable[[Call], tuple[Launch, ...] | None]] = {
    make.__name__: make
    for make in (
        norms.layer_norm,
        norms.layer_norm_grad,
        norms.rms_norm,
        norms.rms_norm_grad,
        rows.softmax,
        rows.softmax_grad,
        rows.log_softmax,
        rows.log_softmax_grad,
        rows.sum_exp,
        rows.sum_exp_grad,
        rows.cross_entropy,
        rows.cross_entropy_grad,
        reductions.reduce_sum,
        reductions.reduce_max,
        reductions.square_sum,
        arithmetic.add,
        arithmetic.sub,
        arithmetic.mul,
        arithmetic.div,
        arithmetic.add_n,
        arithmetic.accumulate,
        elementwise.gelu,
        elementwise.gelu_grad,
        elementwise.gelu_exact,
        elementwise.gelu_exact_grad,
        elementwise.log,
        elementwise.silu,
        elementwise.silu_grad,
        elementwise.bounded_swiglu,
        elementwise.bounded_swiglu_dgate,
        elementwise.bounded_swiglu_dup,
        elementwise.swiglu,
        elementwise.swiglu_grad,
        elementwise.dropout,
        elementwise.add_dropped,
        elementwise.rotary,
        elementwise.cast,
        elementwise.reshape,
        slices.gather,
        slices.gather_grad,
        codes.amax,
        codes.quantize,
        block_codes.quantize_blocks,
        update.adamw,
    )
}
"""Kind of op -> what makes its launches: a function of the kind's own name."""

ON_ROWS: Mapping[str, Callable[[Call], tuple[Launch, ...] | None]] = {
    make.__name__: make
    for make in (
        ragged.gelu,
        ragged.gelu_grad,
        ragged.silu,
        ragged.silu_grad,
        ragged.swiglu,
        ragged.swiglu_grad,
        ragged.bounded_swiglu,
        ragged.bounded_swiglu_dgate,
        ragged.bounded_swiglu_dup,
        ragged.add_by_expert,
        ragged.sum_by_expert,
        ragged.mul,
        ragged.add_n,
        ragged.dropless_dispatch,
        ragged.dropless_combine,
        ragged.dropless_inner,
        ragged.grouped_matmul,
        ragged.grouped_matmul_tn,
    )
}
"""The same on ragged rows, whose count the kernels read."""

PRODUCTS: Mapping[str, Callable[[Call], tuple[MatrixProduct | Launch, ...] | None]] = {
    make.__name__: make for make in (products.matmul, products.matmul_nt, products.matmul_tn, products.batch_matmul)
}
"""Kind of op -> what makes its products, for cuBLASLt."""
PRODUCTS_OF_CODES: Mapping[str, Callable[[Call], tuple[MatrixProduct | Launch, ...] | None]] = {
    make.__name__: make
    for make in (
        codes.scaled_matmul,
        codes.scaled_matmul_nt,
        codes.scaled_matmul_tn,
        block_codes.block_scaled_matmul,
        block_codes.block_scaled_matmul_nt,
        block_codes.block_scaled_matmul_tn,
    )
}
"""The same of codes."""
ATTENTION: Mapping[str, Callable[[Call], tuple[AttentionAct, ...] | None]] = {
    make.__name__: make for make in (attention, attention_grad)
}
"""Kind of op -> what makes its attention, for cuDNN."""

UPDATES: Mapping[str, Callable[[Call], tuple[AdamUpdate] | None]] = {update.adamw.__name__: update.adamw_update}
"""Kind of op -> what makes its update, which is launched with others that follow it."""

Work = Launch | MatrixProduct | AttentionAct | AdamUpdate
"""What is issued to a device: by our loader, by cuBLASLt, by cuDNN; and what waits for others like it."""

_INTEGERS = ("int32", "int64")
_CODES = (*products.FP8, str(DType.FLOAT8_E8M0), "uint8")
"""Codes, scales in eight bits, and bytes of two codes."""


def launches_of(kind: str, call: Call) -> tuple[Launch, ...] | None:
    """The launches of one act, to be run in order; None where no kernel of ours does it.

    Kernels take whole, contiguous arrays of float32, bfloat16, float16 and integers, and ragged rows of the first
    three; strided views and float64 are left to the array module.
    """
    make = (ON_ROWS if _of_rows(call) else LAUNCHES).get(kind)
    return make(call) if make is not None and _is_plain(kind, call) else None


def work_of(kind: str, call: Call) -> tuple[Work, ...] | None:
    """What one act becomes, to be issued in order; None where the array module does it."""
    if _of_rows(call):
        return launches_of(kind, call)
    products_of = PRODUCTS.get(kind) or PRODUCTS_OF_CODES.get(kind)
    make = UPDATES.get(kind) or LAUNCHES.get(kind) or products_of or ATTENTION.get(kind)
    return make(call) if make is not None and _is_plain(kind, call) else None


def _of_rows(call: Call) -> bool:
    return any(isinstance(array, Rows) for array in (*call.inputs, *call.outputs, *call.updates))


def _is_plain(kind: str, call: Call) -> bool:
    arrays = (*call.inputs, *call.outputs, *call.updates)
    whole = all(isinstance(array, Rows) or array.flags.c_contiguous for array in arrays)
    coded = kind in (*PRODUCTS_OF_CODES, codes.quantize.__name__, block_codes.quantize_blocks.__name__)
    known = (*ELEMENTS, *_INTEGERS, *(_CODES if coded else ()))
    return whole and all(str(array.dtype) in known for array in arrays) and (_of_one_dtype(call) or not _of_rows(call))


def _of_one_dtype(call: Call) -> bool:
    """Whether all arrays of floats have one element type."""
    arrays = (*call.inputs, *call.outputs, *call.updates)
    return len({str(array.dtype) for array in arrays} - set(_INTEGERS)) == 1
