"""The page on graphs and global tensors is a program for four ranks, then another with its commands, as printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.faults import losses_of
from tests.mpi.jobs import Job, run_well
from tests.mpi.launch import ROOT, mpiexec

PAGE, PLANS = (ROOT / "docs" / "front_end.md").read_text().split("\n## Plans\n")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a part of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def python(folder: Path, *arguments: str, ranks: int | None = None) -> str:
    """What a program said that had to succeed."""
    launcher = [] if ranks is None else [mpiexec(), "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.mpi
def test_the_page_runs_on_four_ranks(tmp_path: Path) -> None:
    found = blocks(PAGE, "python")
    assert len(found) == 12
    (tmp_path / "page.py").write_text("\n".join([*found, 'print("done", flush=True)\n']))
    assert "done" in python(tmp_path, "-m", "mpi4py", "page.py", ranks=4)


@pytest.mark.mpi
@pytest.mark.long
def test_a_graph_of_ones_own_is_searched_simulated_trained_killed_and_resumed(tmp_path: Path) -> None:
    net, fit = blocks(PLANS, "python")
    (tmp_path / "net.py").write_text(net)
    (tmp_path / "fit.py").write_text(fit)
    whole, cut = ([line.split() for line in text.splitlines()] for text in blocks(PLANS, "sh"))
    search, *commands = whole
    assert search[0] == "python"
    python(tmp_path, *search[1:])
    assert [words[:2] for words in commands] == [["sbplan", verb] for verb in ("verify", "simulate", "train")]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["model"]["family"], plan["model"]["layers"]) == ("recorded-layers", 6)
    told = [run_well(tmp_path, *words[1:]) for words in commands]
    wanted = losses_of(told[-1])
    assert sorted(wanted) == list(range(1, 61))

    first, again = cut
    assert again == [*first, "--resume"]
    job = Job(tmp_path, *first[1:])
    job.wait_for_step(11)  # a save is under way then, and the one before is over
    job.signal(signal.SIGKILL, job.beats()[0].process.pid)
    killed = job.wait()
    assert killed.code != 0
    resumed = losses_of(run_well(tmp_path, *again[1:]))
    assert min(resumed) % 5 == 1
    assert max(resumed) == 60
    assert {**losses_of(killed), **resumed} == wanted
    assert {step: wanted[step] for step in resumed} == resumed
    python(tmp_path, "-m", "mpi4py", "fit.py", ranks=2)
