"""NVRTC, NVIDIA's compiler as a library, from its wheel: needs neither a driver nor a device."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strategy.base.errors import EnvironmentLacks, InputError

_LIBRARY, _HEADERS = "nvidia-cuda-nvrtc", "nvidia-cuda-runtime"
_INSTALL = "install the extra `sbplan[gpu]`"


@dataclass(frozen=True, slots=True)
class Cubin:
    """A program in the code of one architecture, what it was assembled from, and what the assembler said of it."""

    code: bytes
    ptx: str
    log: str


def version() -> str:
    """Of the compiler: "13.0.88"."""
    try:
        return importlib.metadata.version(_LIBRARY)
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentLacks(f"kernels are compiled by NVRTC, which is not installed; {_INSTALL}") from error


def compile_program(text: str, architecture: int, include: Path) -> Cubin:
    """The cubin of a program for a compute capability, such as 90; `include` is where its own headers are.

    Raises:
        EnvironmentLacks: NVRTC or CUDA's headers are missing.
        InputError: the program is wrong; with the compiler's report.
    """
    library = _library()
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None)
    try:
        folders = [f"-I{include}", f"-I{_file(_HEADERS, 'cuda_bf16.h').parent}"]
        # Functions are the device's if nothing is said: of lambdas that take any type nothing can be.
        of_device = "--device-as-default-execution-space"
        options = [f"--gpu-architecture=sm_{architecture}", "--std=c++17", of_device, "--ptxas-options=-v", *folders]
        encoded = [option.encode() for option in options]
        failed = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
        log = _read(library, program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            raise InputError("a kernel does not compile", where=f"sm_{architecture}", got=log, expected="CUDA C++")
        ptx = _read(library, program, "PTX").rstrip(b"\0").decode()
        return Cubin(_read(library, program, "CUBIN"), ptx, log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, found)
    return found.raw


@functools.cache
def _library() -> ctypes.CDLL:
    """The library; it looks for its other half by name, which is found where that is loaded already."""
    ctypes.CDLL(str(_file(_LIBRARY, "libnvrtc-builtins.so")), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(_file(_LIBRARY, "libnvrtc.so")))


def _file(package: str, start: str) -> Path:
    """Where a file of an installed package is, by how its name begins."""
    try:
        files: Sequence[importlib.metadata.PackagePath] = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError as error:
        raise EnvironmentLacks(f"kernels are compiled with {package}, which is not installed; {_INSTALL}") from error
    found = [file for file in files if file.match(f"{start}*")]
    if not found:
        raise EnvironmentLacks(f"{package} {importlib.metadata.version(package)} has no {start}; {_INSTALL}")
    return Path(str(found[0].locate()))
