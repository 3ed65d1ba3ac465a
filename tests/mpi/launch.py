"""Start ranks of this interpreter with mpiexec, as a user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def mpiexec() -> str:
    """The launcher beside this interpreter, or on the path; without one the test fails."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.fail("no mpiexec beside the interpreter or on the path; install the extra sbplan[mpich]")
    return found


def run_ranks(ranks: int, module: str, *arguments: str, timeout_s: float = 120.0) -> str:
    """Run `python -m module` on so many ranks; gives what they printed. Anything but success fails the test."""
    command = [mpiexec(), "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m", module, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
