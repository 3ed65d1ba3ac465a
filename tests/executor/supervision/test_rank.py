"""A rank without a launcher: its run folder, its exit code, what an earlier job left."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from executor.supervision.failure import FAILURE_FILE, record_or_say, tell_once
from executor.supervision.rank import let_the_dead_be_named
from strategy.base.errors import RankFault

ROOT = Path(__file__).resolve().parents[3]


def test_a_rank_alone_needs_no_launcher(tmp_path: Path) -> None:
    code = (
        "import sys; from executor.supervision.environment import run_folder; "
        "from executor.supervision.rank import run_rank\n"
        "run_rank(lambda: print(run_folder()) or 'numpy' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=20)
    assert (ended.returncode, ended.stderr) == (0, "")
    folder = Path(ended.stdout.strip())
    assert folder.parent == tmp_path
    deadline_s = time.monotonic() + 5
    while folder.exists() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert not folder.exists()


@pytest.mark.parametrize(("leave", "code"), [("sys.exit(4)", 4), ("sys.exit('why')", 1), ("sys.exit()", 0), ("3", 3)])
def test_the_exit_code_is_the_rank_s(tmp_path: Path, leave: str, code: int) -> None:
    script = f"import sys; from executor.supervision.rank import run_rank; run_rank(lambda: {leave})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, timeout=20).returncode == code


def test_the_cause_of_an_earlier_job_is_forgotten(tmp_path: Path) -> None:
    old = tmp_path / "failure.json"
    old.write_text("{}")
    os.utime(old, (1, 1))
    script = (
        "import sys; from pathlib import Path; from executor.supervision.rank import run_rank;"
        "run_rank(lambda: 0, folder=Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run(command, env=environment, timeout=20).returncode == 0
    assert not old.exists()


def test_a_cause_that_cannot_be_written_down_is_told_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert record_or_say(tmp_path, 0, "written down")
    assert capsys.readouterr().err == ""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    assert record_or_say(tmp_path / "full", 0, "the disk is full")
    tell_once(tmp_path)
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(": ")[2] for line in told] == ["the disk is full", "written down"]
    assert all(line.startswith("sbplan: rank 0 (pid -1 on ") for line in told)


def test_a_rank_in_which_mpi_failed_lets_the_killed_peer_be_named(tmp_path: Path) -> None:
    """The kill is told a moment later by the peer's guard; other errors are the rank's own, and told at once."""
    of_mpi = type("Exception", (RuntimeError,), {"__module__": "mpi4py.MPI"})("process_vm_readv failed (errno 3)")
    fault = RankFault(3, "transfer", 16, "MPI failed")
    fault.__cause__ = of_mpi
    told = threading.Timer(0.1, lambda: (tmp_path / FAILURE_FILE).touch())
    told.start()
    let_the_dead_be_named(fault, tmp_path)
    assert (tmp_path / FAILURE_FILE).exists()
    told.join()
    (tmp_path / FAILURE_FILE).unlink()
    for error, least_s, most_s in ((ValueError("unwell"), 0.0, 0.2), (fault, 0.3, 5.0)):
        began_s = time.monotonic()
        let_the_dead_be_named(error, tmp_path)
        assert least_s <= time.monotonic() - began_s < most_s
