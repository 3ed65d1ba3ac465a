"""A program of a user's own under mpiexec: an exception in one rank ends all of them, and is told."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from executor.supervision.abort import exit_code_of
from strategy.base.errors import InputError, RunError
from tests.mpi.jobs import ROOT
from tests.mpi.launch import mpiexec
from tests.support.long_parameters import long_but

PAGE = """
import sys, time
from pathlib import Path
from executor.frontend.global_tensor import broadcast, placement, randn, split
from executor.frontend.world import current_world

ranks = placement([0, 1, 2])
a = randn(6, 5, placement=ranks, sbp=split(0))
if current_world().rank == 1:
    time.sleep(0.5)
    Path("raised").write_text(repr(time.time()))
    {what}
(a @ randn(5, 4, placement=ranks, sbp=broadcast)).numpy()
"""


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("what", "code", "told"),
    long_but(
        [
            ("raise ValueError('rank 1 is unwell')", 70, "ValueError: rank 1 is unwell"),
            ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
        ],
        0,
    ),
)
def test_an_exception_in_one_rank_of_a_page_ends_all(tmp_path: Path, what: str, code: int, told: str) -> None:
    (tmp_path / "page.py").write_text(PAGE.replace("{what}", what))
    command = [mpiexec(), "-n", "3", "-env", "PYTHONPATH", str(ROOT), sys.executable, "page.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    seconds = time.time() - float((tmp_path / "raised").read_text())
    assert ended.returncode == code
    assert seconds <= 1.0
    lines = ended.stderr.splitlines()
    assert lines[:2] == ["sbplan: rank 1 ends the job:", "Traceback (most recent call last):"]
    assert lines[-1] == told
    assert ended.stderr.count("Traceback") == 1


def test_the_code_of_an_end() -> None:
    errors = (KeyboardInterrupt(), SystemExit(143), InputError("no"), RunError("no"), ValueError("no"))
    assert [exit_code_of(error) for error in errors] == [130, 143, 2, 6, 70]
