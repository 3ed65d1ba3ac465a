"""Bench: a device with all that its acts become, and a stopwatch on its stream."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from executor.runtime.kernels.gpu.attention import AttentionAct
from executor.runtime.kernels.gpu.cublaslt import ProductPlans
from executor.runtime.kernels.gpu.cudnn import AttentionPlans
from executor.runtime.kernels.gpu.device import DeviceActs
from strategy.base.errors import EnvironmentLacks

Command = Callable[[Sequence[str], float], tuple[int, str]]
"""Runs arguments, for so many seconds at most: its exit code, and what it wrote to either output."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large operands are: `rows` of `width`, `classes` of a vocabulary, a batch of sequences for attention."""

    rows: int
    width: int
    classes: int
    sequence: int
    repeats: int


FULL = Sizes(rows=8192, width=4096, classes=50304, sequence=2048, repeats=20)
SMALL = Sizes(rows=12, width=64, classes=48, sequence=16, repeats=1)
"""Of a check against the array code in double precision, which runs on the host."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What parts run on.

    Attributes:
        xp: the array module.
        acts: what issues acts to the device.
        products: the library of products, for its other algorithms.
        attention: the library of attention, for what it refuses.
        sizes: of what is timed.
        command: runs a command of ours, as a user would.
        nccl: the module of collectives; None where it is missing.
    """

    xp: Any
    acts: DeviceActs
    products: ProductPlans
    attention: AttentionPlans
    sizes: Sizes
    command: Command
    nccl: Any = None

    def seconds(self, act: Callable[[], object]) -> float:
        """Of one act on the device: the mean over `sizes.repeats`, after two that warm up.

        They are one graph: the host takes longer to issue an act than the device to do a short one.
        """
        cuda = self.xp.cuda
        with cuda.Stream(non_blocking=True) as stream:
            for _ in range(2):
                act()
            stream.begin_capture()
            for _ in range(self.sizes.repeats):
                act()
            graph = stream.end_capture()
            graph.launch(stream)
            begin, end = cuda.Event(), cuda.Event()
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
        return float(cuda.get_elapsed_time(begin, end)) / 1e3 / self.sizes.repeats

    @property
    def stream(self) -> int:
        """The address of the current stream."""
        return int(self.xp.cuda.get_current_stream().ptr)

    def takes(self, act: AttentionAct) -> bool:
        """Whether the library of attention does it."""
        return self.attention.takes(act)


def run_command(arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run this Python with arguments; a command that takes longer is ended, and has code 124."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        written = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return 124, f"{written}\nended after {limit_s:.0f} s"
    return done.returncode, done.stdout


def require_device() -> Any:
    """CuPy on a machine with a device.

    Raises:
        EnvironmentLacks: there is none, or no CuPy.
    """
    try:
        import cupy
    except ImportError as error:
        raise EnvironmentLacks(f"acceptance needs CuPy ({error}); install the extra `sbplan[gpu]`") from error
    if not cupy.cuda.is_available():
        raise EnvironmentLacks("acceptance needs an NVIDIA GPU and its driver, and CUDA finds none; see nvidia-smi")
    return cupy


def open_bench() -> Bench:
    """The bench of this machine's first device.

    Raises:
        EnvironmentLacks: a device, a library or the kernels are missing.
    """
    from executor.runtime.kernels.gpu.cublaslt import import_cublaslt
    from executor.runtime.kernels.gpu.cudnn import import_cudnn
    from executor.runtime.kernels.gpu.loader import LoadedKernels

    xp = require_device()
    products, attention = ProductPlans(import_cublaslt()), AttentionPlans(import_cudnn())
    acts = DeviceActs(xp, LoadedKernels(xp), products, attention)
    return Bench(xp, acts, products, attention, FULL, run_command, import_nccl())


def import_nccl() -> Any:
    """CuPy's module of collectives, which is imported by name alone; None where NCCL is missing."""
    from cupy.cuda import nccl

    return nccl if nccl.available else None
