"""CuPy on one NVIDIA GPU. Every act is waited for, so that what the worker measures is the act itself."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from executor.runtime.kernels.gpu.device import open_acts
from executor.runtime.transport.base import HostArray
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Array, Call, OpDef

_INSTALL = "install the extra `sbplan[gpu]`, or use --backend numpy"


def _import_cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise EnvironmentLacks(f"--backend cupy needs CuPy, which cannot be imported ({error}); {_INSTALL}") from error
    if not cupy.cuda.is_available():
        raise EnvironmentLacks("--backend cupy needs an NVIDIA GPU and its driver, and CUDA finds none; see nvidia-smi")
    module: ModuleType = cupy
    return module


class CupyKernels:
    """See `executor.runtime.kernels.base.Kernels`."""

    host = False

    def __init__(self, device: int = 0, *, tf32: bool = False) -> None:
        self.xp = _import_cupy()
        count = self.xp.cuda.runtime.getDeviceCount()
        if device >= count:
            raise EnvironmentLacks(f"GPU {device} is needed and this machine has {count}; start fewer ranks per node")
        self.xp.cuda.Device(device).use()
        self._stream = self.xp.cuda.get_current_stream()
        self._acts = open_acts(self.xp, tf32=tf32)

    def run(self, definition: OpDef, call: Call) -> None:
        """Run one act of an op, by kernels of its own where there are some, else by CuPy's; and wait for it.

        Updates that follow one another are run together, before anything else is run or copied.
        """
        if self._acts.run(definition, call):
            self._stream.synchronize()

    def address(self, array: Array) -> int:
        """Where an array begins in the GPU's memory."""
        return int(array.data.ptr)

    def host_like(self, array: Array) -> HostArray:
        """A pinned host array of this shape and dtype."""
        pinned = self.xp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        return np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)

    def download(self, array: Array, host: HostArray) -> None:
        """Copy from the GPU, and wait for it."""
        self._acts.flush()
        array.get(out=host)

    def upload(self, host: HostArray, array: Array) -> None:
        """Copy to the GPU, and wait for it."""
        self._acts.flush()
        array.set(host)
        self._stream.synchronize()
