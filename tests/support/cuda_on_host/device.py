"""A device that is the host: compiles kernels with g++, runs launches on NumPy arrays in a process of its own."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from executor.runtime.kernels.gpu.launch import Addresses, Argument, Launch
from executor.runtime.kernels.gpu.program import BLOCK, SOURCES, parameters, program_text, source_files
from strategy.sbp.tensor import DType

HERE = Path(__file__).parent
CACHE = Path(tempfile.gettempdir()) / f"sbplan-cuda-on-host-{os.getuid()}"
FLAGS = (
    "-std=c++17",
    "-O0",
    "-g1",
    "-fno-strict-aliasing",
    "-fsanitize=address,alignment",
    "-fsanitize-sections=block_shared",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-w",
)
"""Vector loads read elements as packs of them: aliases, as CUDA allows them; alignment is checked."""
Host = NDArray[np.generic]


class KernelFault(Exception):
    """A kernel did what it must not: the report of the sanitiser or of the stand-in."""


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Kernels of one element type as a program of the host."""

    path: Path
    kernels: tuple[str, ...]


def require_compiler() -> None:
    """Skips a test where kernels cannot be run on the host; in CI that is a failure."""
    if shutil.which("g++") is None or platform.machine() != "x86_64":
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse("kernels run on the host by g++ on x86-64: apt install g++")


@cache
def build(
    element: DType, sources: Path = SOURCES, files: tuple[str, ...] = source_files(), extra: str = ""
) -> HostProgram:
    """Compiles the kernels of these files, and of `extra` text behind them; once for each content.

    What it takes to find out whether there is that content is remembered, too: a file is not to change in a process.
    """
    require_compiler()
    text = "".join((sources / name).read_text() for name in files) + extra
    kernels = tuple(sorted(parameters(text)))
    table = ", ".join(f"KERNEL({name})" for name in kernels)
    main = f"""{program_text(element, files)}{extra}
#include "device.h"
int main(int, char **arguments) {{
  return run_file({{{table}}}, std::atoi(arguments[1]), arguments[2], arguments[3]);
}}
"""
    shared = [path.read_text() for path in sorted((*HERE.glob("*.h"), *HERE.glob("*.cuh"), *sources.glob("*.cuh")))]
    digest = hashlib.sha256("\0".join([main, text, *shared, *FLAGS]).encode()).hexdigest()[:24]
    CACHE.mkdir(mode=0o700, exist_ok=True)
    path = CACHE / digest
    if not path.exists():
        partial = CACHE / f"{digest}.{os.getpid()}"
        command = ["g++", *FLAGS, f"-I{HERE}", f"-I{sources}", "-x", "c++", "-", "-o", str(partial)]
        done = subprocess.run(command, input=main, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KernelFault(done.stderr)
        partial.rename(path)
    return HostProgram(path, kernels)


def run(program: HostProgram, launches: Sequence[Launch], *, reverse: bool = False, threads: int = BLOCK) -> None:
    """Runs launches in order on the arrays that they name, which are rewritten.

    Threads of a block and blocks of a grid take turns in ascending order, or in `reverse`.

    Raises:
        KernelFault: with the report.
    """
    memory = _Memory()
    body = b"".join(_launch(program, launch, memory, reverse) for launch in launches)
    buffers = b"".join(_figures(base.nbytes) + base.tobytes() for base in memory.bases)
    request = _figures(len(memory.bases)) + buffers + _figures(len(launches)) + body
    with tempfile.TemporaryDirectory() as folder:
        written, answer = Path(folder) / "request", Path(folder) / "answer"
        written.write_bytes(request)
        command = [str(program.path), str(threads), str(written), str(answer)]
        options = {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:max_malloc_fill_size=1048576"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **options})
        if done.returncode:
            raise KernelFault(f"exit {done.returncode}: {done.stderr}")
        memory.read(answer.read_bytes())


class _Memory:
    """The arrays that own the memory of others, each a buffer of the device."""

    def __init__(self) -> None:
        self.bases: list[Host] = []

    def place(self, array: Host) -> tuple[int, int]:
        """Which buffer an array lies in, and where."""
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        position = next((position for position, known in enumerate(self.bases) if known is base), len(self.bases))
        if position == len(self.bases):
            self.bases.append(base)
        return position, array.ctypes.data - base.ctypes.data

    def read(self, answer: bytes) -> None:
        """Write back what the device left."""
        at = 0
        for base in self.bases:
            found = np.frombuffer(answer, np.uint8, base.nbytes, at)
            base.reshape(-1).view(np.uint8)[...] = found
            at += base.nbytes


def _figures(*figures: int) -> bytes:
    return struct.pack(f"<{len(figures)}Q", *figures)


def _launch(program: HostProgram, launch: Launch, memory: _Memory, reverse: bool) -> bytes:
    figures = (program.kernels.index(launch.kernel), *launch.grid, reverse, len(launch.arguments))
    return _figures(*figures) + b"".join(_argument(argument, memory) for argument in launch.arguments)


def _argument(argument: Argument, memory: _Memory) -> bytes:
    if isinstance(argument, np.generic):
        value = argument.tobytes()
        return _figures(len(value)) + value + _figures(0)
    arrays, room = (argument.arrays, argument.room) if isinstance(argument, Addresses) else ((argument,), 1)
    places = [(word, *memory.place(array)) for word, array in enumerate(arrays) if array is not None]
    return _figures(8 * room) + bytes(8 * room) + _figures(len(places)) + b"".join(_figures(*p) for p in places)
