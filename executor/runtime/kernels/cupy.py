"""CuPy on one NVIDIA GPU: what is run is ordered on the current stream, and not waited for."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.kernels.cupy_streams import CupyStreams
from executor.runtime.kernels.gpu.device import open_acts
from executor.runtime.kernels.gpu.launch import address_of
from executor.runtime.kernels.gpu.table import UPDATES
from executor.runtime.transport.base import HostArray
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import Array, Call, OpDef
from strategy.graph.ops.scratch import ScratchSizes

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
    batched = tuple(UPDATES)

    def __init__(self, device: int = 0, *, shared: bool = False, tf32: bool = False) -> None:
        self.xp = _import_cupy()
        count = self.xp.cuda.runtime.getDeviceCount()
        if device >= count and not shared:
            hint = "start fewer ranks per node, or let them share GPUs with --share-devices"
            raise EnvironmentLacks(f"GPU {device} is needed and this machine has {count}; {hint}")
        self.xp.cuda.Device(device % count).use()
        # Temporaries of array code come from this pool: what it must leave is for the driver and the libraries.
        self.xp.get_default_memory_pool().set_limit(fraction=_MOST_OF_MEMORY)
        self._acts = open_acts(self.xp, tf32=tf32)
        self.streams = CupyStreams(self.xp, self._acts.flush)

    def wait(self) -> None:
        """Wait for the current stream."""
        self._acts.flush()
        self.xp.cuda.get_current_stream().synchronize()

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        """By kernels of its own where there are some, else by CuPy's.

        Updates that follow one another are run together, before anything else is run, copied or recorded.
        """
        return self._acts.bind(definition, call)

    def counts_rows(self, definition: OpDef, call: Call) -> bool:
        """Where kernels of ours read the count; array code is told it by the host."""
        return self._acts.has_kernels(definition, call)

    def scratch(self, definition: OpDef, call: Call) -> ScratchSizes:
        """What kernels and libraries ask for; what ops declare where the array module runs them."""
        return self._acts.scratch(definition, call)

    def address(self, array: Array) -> int:
        """Where an array begins in the GPU's memory."""
        return address_of(array)

    def host_like(self, array: Array) -> HostArray:
        """A pinned host array of this shape and dtype."""
        pinned = self.xp.cuda.alloc_pinned_memory(max(array.nbytes, 1))
        return np.frombuffer(pinned, array.dtype, array.size).reshape(array.shape)

    def download(self, array: Array, host: HostArray) -> None:
        """Copy from the GPU; at the speed of the bus where the host's memory is pinned."""
        self._copy(address_of(host), address_of(array), array.nbytes, _DEVICE_TO_HOST)

    def upload(self, host: HostArray, array: Array) -> None:
        """Copy to the GPU; at the speed of the bus where the host's memory is pinned."""
        self._copy(address_of(array), address_of(host), array.nbytes, _HOST_TO_DEVICE)

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        """Both sides lie together in memory, as blocks of registers do."""
        self._acts.flush()
        cuda = self.xp.cuda
        cuda.runtime.memcpyAsync(target, source, nbytes, kind, cuda.get_current_stream().ptr)


_MOST_OF_MEMORY = 0.94
"""Of the device's memory that CuPy's pool may hold."""
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
"""`cudaMemcpyKind`."""
