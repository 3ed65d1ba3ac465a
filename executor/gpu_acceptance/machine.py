"""Parts of acceptance that say what there is: versions and the device, kernels compiled here, the memory's own rate."""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.outcome import Figures, PartFailed
from executor.runtime.kernels.gpu import nvrtc
from executor.runtime.kernels.gpu.build import build as build_cubins
from executor.runtime.kernels.gpu.loader import architecture_for

_PACKAGES = (
    "cupy-cuda13x",
    "nvmath-python",
    "nvidia-cublas",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "nccl4py",
    "nvidia-cuda-nvrtc",
    "mpi4py",
    "torch",
)
_COPIED_NBYTES = 2**30


def environment(bench: Bench) -> Figures:
    """The device, its memory, versions of driver, runtime and packages."""
    runtime = bench.xp.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    capability = int(bench.xp.cuda.Device().compute_capability)
    free, total = runtime.memGetInfo()
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "device": properties["name"].decode(),
        "devices": int(runtime.getDeviceCount()),
        "compute_capability": capability,
        "code": f"sm_{architecture_for(capability)}",
        "multiprocessors": int(properties["multiProcessorCount"]),
        "memory_bytes": int(total),
        "free_bytes": int(free),
        "driver": int(runtime.driverGetVersion()),
        "runtime": int(runtime.runtimeGetVersion()),
        "packages": versions,
    }


def build(bench: Bench) -> Figures:
    """Every kernel for every architecture, by NVRTC here; none spills."""
    with tempfile.TemporaryDirectory() as folder:
        usages = build_cubins(Path(folder))
    found = {
        name: max(usage[name].registers for usage in usages.values())
        for name in sorted({name for usage in usages.values() for name in usage})
    }
    spilling = sorted(
        {name for usage in usages.values() for name, one in usage.items() if one.spilled_bytes + one.stack_bytes}
    )
    figures = {"compiler": nvrtc.version(), "programs": len(usages), "most_registers": found}
    if spilling:
        raise PartFailed(f"kernels that spill registers: {', '.join(spilling)}", figures)
    return figures


def copy_bytes_per_s(bench: Bench) -> float:
    """Bytes that a copy on the device reads and writes in a second: the floor of what memory bounds."""
    size = min(_COPIED_NBYTES, bench.sizes.rows * bench.sizes.width * 8)
    source, target = (bench.xp.empty(size, "uint8") for _ in range(2))
    return 2 * size / bench.seconds(lambda: bench.xp.copyto(target, source))
