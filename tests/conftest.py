"""What every test may ask for: the command as a user runs it, an mpiexec, one BLAS thread, a lazy garbage collector."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import hypothesis
import pytest

# Ranks and test workers share the cores: BLAS threads that spin on a shared core cost 5-10 times their use.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
# Hundreds of processes are started: each would compile all modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says something of the machine alone, which may be busy.
hypothesis.settings.register_profile("sbplan", deadline=None)
hypothesis.settings.load_profile("sbplan")

# Graphs and programs are made of many objects that are no garbage; the command looks through them seldom, too.
gc.set_threshold(100_000, *gc.get_threshold()[1:])

ROOT = Path(__file__).parent.parent
Sbplan = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def sbplan() -> Sbplan:
    """Run the command in a process of its own: `sbplan("solve", path, cwd=..., env={...})`."""

    def run(
        *args: object, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        command = [sys.executable, "-m", "experiments.entry", *map(str, args)]
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    return run


@pytest.fixture(scope="session")
def mpiexec() -> str:
    """The mpiexec of this environment, as the command itself would find it."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        pytest.fail("no mpiexec: pip install sbplan[mpich]")
    return found


def pytest_collection_finish() -> None:
    """Modules and tests last as long as the run: they are not looked through for garbage again and again."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first; tests marked `gpu` are skipped, with the reason, where there is no device.

    Workers that share tests out end together where the last ones are short.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # within each half, as they were
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = _no_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str | None:
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install sbplan[gpu]"
    return None if cupy.cuda.is_available() else "CuPy finds no CUDA device"
