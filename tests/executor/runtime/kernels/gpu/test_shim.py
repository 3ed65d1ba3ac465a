"""The stand-in for a device reports what a device would do wrong in silence."""

from __future__ import annotations

import numpy as np
import pytest

from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.program import BLOCK
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import HostProgram, KernelFault, build, run

HEAD = 'extern "C" __global__ void __launch_bounds__(BLOCK)\n    '
WRONG = {
    "a barrier that not all threads of the block reach": (
        "{ if (threadIdx.x < 7) return; __syncthreads(); x[threadIdx.x] = 1; }"
    ),
    "threads wait at barriers of different lines": (
        "{\n if (threadIdx.x < 7) __syncthreads();\n else\n __syncthreads();\n x[threadIdx.x] = 1; }"
    ),
    "an exchange waits for lanes that do not come": (
        "{ if (threadIdx.x % 4) return; x[threadIdx.x] = __shfl_xor_sync(ALL_LANES, x[threadIdx.x], 1); }"
    ),
    "a lane takes part in an exchange whose mask leaves it out": (
        "{ x[threadIdx.x] = __shfl_xor_sync(0xffffu, x[threadIdx.x], 1); }"
    ),
    "a shuffle reads from a lane outside of its mask": (
        "{ if (threadIdx.x % 32 < 16) x[threadIdx.x] = __shfl_xor_sync(0xffffu, x[threadIdx.x], 16); }"
    ),
    "heap-buffer-overflow": "{ x[threadIdx.x + 1] = 1; }",
    "global-buffer-overflow": (
        "{ __shared__ float room[4]; room[0] = 1; __syncthreads(); x[threadIdx.x] = room[4 + threadIdx.x / 64]; }"
    ),
    "stack-buffer-overflow": (
        "{ float own[4]; for (int j = 0; j < 4; ++j) own[j] = x[j]; x[threadIdx.x] = own[3 + int(x[9])]; }"
    ),
    "misaligned address": "{ float v[PACK]; load<PACK>(x + 1, v); x[threadIdx.x] = v[0]; }",
}
NAMES = {wrong: f"wrong_{number}" for number, wrong in enumerate(WRONG)}
KERNELS = {
    **{f"{NAMES[wrong]}(float *x)": body for wrong, body in WRONG.items()},
    "peek(float *x)": "{ __shared__ float room[4]; if (threadIdx.x < 4) x[threadIdx.x] = room[threadIdx.x]; }",
    "sized(float *x, Index n)": "{ x[0] = n; }",
}
TEXT = "".join(f"\n{HEAD}{kernel} {body}\n" for kernel, body in KERNELS.items())


def program() -> HostProgram:
    """All of these: what it takes to compile one is mostly what it takes to compile any."""
    return build(DType.FLOAT32, files=(), extra=TEXT)


@pytest.mark.parametrize("report", WRONG)
def test_what_goes_wrong_is_reported(report: str) -> None:
    x = np.ones(BLOCK, np.float32)
    with pytest.raises(KernelFault, match=report):
        run(program(), [Launch(NAMES[report], DType.FLOAT32, (1, 1, 1), (x,))])


def test_shared_memory_begins_as_no_numbers() -> None:
    x = np.ones(4, np.float32)
    run(program(), [Launch("peek", DType.FLOAT32, (3, 1, 1), (x,))])
    assert np.isnan(x).all()


def test_arguments_of_another_size_are_refused() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(KernelFault, match="an argument of another size"):
        run(program(), [Launch("sized", DType.FLOAT32, (1, 1, 1), (x, np.int32(4)))])
    with pytest.raises(KernelFault, match="another number of arguments"):
        run(program(), [Launch("sized", DType.FLOAT32, (1, 1, 1), (x,))])
