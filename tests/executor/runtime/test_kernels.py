"""Backends open by name or say what is missing; NumPy runs on one BLAS thread."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from executor.runtime.kernels.base import open_kernels
from strategy.base.errors import EnvironmentLacks, InputError
from tests.mpi.launch import ROOT

PROBE = "from executor.runtime.kernels.numpy import require_one_blas_thread as require; require()"


def probe(threads: int) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"), str(threads)))
    command = [sys.executable, "-c", PROBE]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_one_blas_thread_is_accepted() -> None:
    found = probe(1)
    assert found.returncode == 0, found.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: BLAS cannot use two")
def test_two_blas_threads_are_refused() -> None:
    found = probe(2)
    assert "EnvironmentLacks: BLAS uses about" in found.stderr
    assert "OPENBLAS_NUM_THREADS=1" in found.stderr


def test_unknown_backend() -> None:
    with pytest.raises(InputError, match="did you mean 'numpy'"):
        open_kernels("nunpy")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_cupy_says_what_is_missing() -> None:
    with pytest.raises(EnvironmentLacks, match=r"CuPy.*sbplan\[gpu\]") as caught:
        open_kernels("cupy")
    assert caught.value.exit_code == 5
