"""Kernels on a device: cubins loaded by path through CuPy, and launches of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from executor.runtime.kernels.gpu.build import ARCHITECTURES, CUBINS, cubin_name
from executor.runtime.kernels.gpu.launch import Addresses, Argument, Launch, address_of
from executor.runtime.kernels.gpu.program import BLOCK, ELEMENTS, all_parameters
from strategy.base.errors import EnvironmentLacks
from strategy.graph.ops.base import ArrayModule
from strategy.sbp.tensor import DType

_THREADS = (BLOCK, 1, 1)
_BUILD = "python -m executor.runtime.kernels.gpu.build"


def architecture_for(capability: int) -> int:
    """Which code a device of a compute capability such as 86 runs: that of its generation, and not newer than it.

    Raises:
        EnvironmentLacks: no cubin is made for its generation.
    """
    fitting = [made for made in ARCHITECTURES if made <= capability and made // 10 == capability // 10]
    if not fitting:
        made = ", ".join(map(str, ARCHITECTURES))
        raise EnvironmentLacks(f"no kernels are made for a device of compute capability {capability} ({made})")
    return max(fitting)


class LoadedKernels:
    """Every kernel of every element type on the current device.

    All are loaded at once, before the first collective: loading synchronises the device.
    """

    def __init__(self, xp: ArrayModule, folder: Path = CUBINS) -> None:
        architecture = architecture_for(int(xp.cuda.Device().compute_capability))
        self._functions: dict[tuple[DType, str], Any] = {}
        for element in ELEMENTS:
            path = folder / cubin_name(element, architecture)
            if not path.exists():
                raise EnvironmentLacks(f"{path} is missing: the kernels are made by `{_BUILD} --out {folder}`")
            module = xp.RawModule(path=str(path))
            for kernel in all_parameters():
                self._functions[element, kernel] = module.get_function(kernel)

    def bind(self, launch: Launch) -> Callable[[int], None]:
        """What issues a launch to the current stream, by the number of the act."""
        function, arguments = self._functions[launch.element, launch.kernel], tuple(map(_argument, launch.arguments))
        if not launch.by_number:
            return lambda number: function(launch.grid, _THREADS, arguments)

        def issue(number: int) -> None:
            given = list(arguments)
            for position, figure in launch.by_number:
                given[position] = _argument(figure(number))
            function(launch.grid, _THREADS, tuple(given))

        return issue


def _argument(argument: Argument) -> Any:
    """As CuPy takes it: structs by value are arrays of one element."""
    if isinstance(argument, Addresses):
        words = [0 if array is None else address_of(array) for array in argument.arrays]
        words += [0] * (argument.room - len(words))
        argument = np.void(np.array(words, np.uint64).tobytes())
    return np.array(argument) if isinstance(argument, np.void) else argument
