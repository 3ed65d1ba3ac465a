"""The programs on the page on gradient exchange run as printed, and the tests that it names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT, mpiexec

PAGE = (ROOT / "docs" / "negotiation.md").read_text()
NUMPY, TORCH = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ROWS = re.findall(r"^\| (B\d+) \| .* \| (.*) \|$", PAGE, re.MULTILINE)


def printed(folder: Path, program: str) -> str:
    """What a program says on two ranks, started as the page says."""
    (command,) = re.findall(r"^```sh\n(.*?)\n```$", PAGE, re.MULTILINE)
    launcher, _, count, _, path = command.split()
    assert launcher == "mpiexec"
    (folder / path).write_text(program)
    done = subprocess.run(
        [mpiexec(), "-n", count, sys.executable, path],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.mpi
def test_the_numpy_program_runs_as_printed(tmp_path: Path) -> None:
    assert printed(tmp_path, NUMPY) == "2 ranks, loss below 1e-6: True\n"


@pytest.mark.mpi
def test_the_pytorch_program_runs_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install 'sbplan[torch]'")
    assert printed(tmp_path, TORCH) == "2 ranks, loss below 0.5: True\n"


def test_every_row_has_a_test() -> None:
    of_the_simulator = {"B8", "B9", "B19", "B20"}
    assert {row for row, _ in ROWS} | of_the_simulator == {f"B{number}" for number in range(1, 21)}
    for row, cell in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", cell)
        assert named, row
        for path, function in named:
            assert f"def {function}(" in (ROOT / path).read_text(), (path, function)
