"""Which ops have kernels of ours: an act becomes launches, or None where the array module is to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from executor.runtime.kernels.gpu import elementwise, rows, slices, update
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.program import ELEMENTS
from strategy.graph.ops.base import Call
from strategy.sbp.ragged import Rows

LAUNCHES: Mapping[str, Callable[[Call], tuple[Launch, ...] | None]] = {
    make.__name__: make
    for make in (
        rows.layer_norm,
        rows.layer_norm_grad,
        rows.rms_norm,
        rows.rms_norm_grad,
        rows.softmax,
        rows.softmax_grad,
        rows.log_softmax,
        rows.log_softmax_grad,
        rows.sum_exp,
        rows.sum_exp_grad,
        rows.cross_entropy,
        rows.cross_entropy_grad,
        rows.square_sum,
        elementwise.gelu,
        elementwise.gelu_grad,
        elementwise.gelu_exact,
        elementwise.gelu_exact_grad,
        elementwise.silu,
        elementwise.silu_grad,
        elementwise.bounded_swiglu,
        elementwise.bounded_swiglu_dgate,
        elementwise.bounded_swiglu_dup,
        elementwise.dropout,
        elementwise.rotary,
        elementwise.cast,
        slices.gather,
        slices.gather_grad,
        update.adamw,
    )
}
"""Kind of op -> what makes its launches: a function of the kind's own name."""

_INTEGERS = ("int32", "int64")


def launches_of(kind: str, call: Call) -> tuple[Launch, ...] | None:
    """The launches of one act, to be run in order; None where no kernel of ours does it.

    Kernels take whole, contiguous arrays of float32, bfloat16, float16 and integers; ragged rows, strided views and
    float64 are left to the array module.
    """
    make = LAUNCHES.get(kind)
    arrays = (*call.inputs, *call.outputs, *call.updates)
    if make is None or any(isinstance(array, Rows) or not array.flags.c_contiguous for array in arrays):
        return None
    if any(str(array.dtype) not in (*ELEMENTS, *_INTEGERS) for array in arrays):
        return None
    return make(call)
