"""Which BLAS this process multiplies by, and which of its kernels it has chosen for the processor."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import numpy as np

_GETTERS = ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename")


def blas_kernel() -> str:
    """Such as `scipy-openblas 0.3.30, kernel SkylakeX`; without the kernel where the library does not tell."""
    np.dot(np.ones((2, 2)), np.ones((2, 2)))  # so that the library is there
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    told = f"{blas['name']} {blas.get('version', '')}".strip()
    maps = Path("/proc/self/maps")
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "blas" in line} if maps.exists() else set()
    for path in sorted(paths):
        for name in _GETTERS:
            with suppress(OSError, AttributeError):
                getter = getattr(ctypes.CDLL(path), name)
                getter.restype = ctypes.c_char_p
                return f"{told}, kernel {getter().decode()}"
    return told
