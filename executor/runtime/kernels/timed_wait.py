"""Timed-wait kernels: acts that compute nothing, and last as long as their work takes at a fixed rate.

A stand-in for devices that do not share cores: more ranks than there are cores wait side by side, while their messages
are real. What is predicted of such a job is how acts, credits, streams and messages add up to a step, not what an op
costs. Results are ones, for a step divides by counts, and no rows; state stays as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.kernels.numpy import NumpyKernels
from strategy.graph.ops.base import Array, Call, OpDef
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import DType, TensorSpec

FLOP_PER_S, BYTES_PER_S, ACT_S = 20e9, 8e9, 2e-4
"""Rates of such a device, and what an act takes besides."""


class TimedWaitKernels(NumpyKernels):
    """See `executor.runtime.kernels.base.Kernels`."""

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """An act that writes what needs no computing, then waits."""
        lasts_s = seconds(definition, call)

        def act() -> None:
            end_s = time.perf_counter() + lasts_s
            for output in call.outputs:
                if isinstance(output, Rows):
                    output.raw.fill(0)
                else:
                    output.fill(1)
            time.sleep(max(0.0, end_s - time.perf_counter()))

        return BoundAct(act)


def seconds(definition: OpDef, call: Call) -> float:
    """What an act takes at these rates."""
    read, written, updated = (_specs(arrays) for arrays in (call.inputs, call.outputs, call.updates))
    flop = definition.flop(read, written, call.attrs)
    nbytes = sum(spec.nbytes for spec in (*read, *written, *updated))
    return ACT_S + flop / FLOP_PER_S + nbytes / BYTES_PER_S


def _specs(arrays: Sequence[Array]) -> tuple[TensorSpec, ...]:
    return tuple(
        array.spec if isinstance(array, Rows) else TensorSpec(array.shape, DType(str(array.dtype))) for array in arrays
    )
