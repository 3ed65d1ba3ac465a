"""A compiled C program is a rank like any other."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from executor.exchange.c_interface import build
from executor.exchange.c_interface.build import build_library
from strategy.base.errors import EnvironmentLacks
from tests.mpi.launch import ROOT, mpiexec

HERE = Path(__file__).parent


@pytest.mark.mpi
def test_b2_a_c_program_on_two_ranks(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        pytest.skip("this Python was built without a shared library, which a C program would load")
    library = build_library(tmp_path)
    program = tmp_path / "average"
    link = [f"-L{tmp_path}", "-lexchange", f"-Wl,-rpath,{library.parent}"]
    compile_it = ["gcc", "-Wall", "-Werror", f"-I{tmp_path}", str(HERE / "average.c"), "-o", str(program), *link]
    subprocess.run(compile_it, check=True, capture_output=True, text=True)
    done = subprocess.run(
        [mpiexec(), "-n", "2", str(program)],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2 (0 of 2): 0.5 5 -1 1", "1 of 2 (1 of 2): 0.5 5 -1 1"]


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentLacks, match="neither gcc nor cc is on PATH"):
        build_library(tmp_path)
