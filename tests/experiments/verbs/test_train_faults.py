"""A training job that is killed, stopped or resumed: it ends, says who and where, and goes on as if nothing was."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor.supervision.environment import find_mpiexec
from tests.mpi.broken import STOP_S
from tests.mpi.faults import Fault, check_fault, find_failure, losses_of, never_killed
from tests.mpi.jobs import ROOT, Job, run_well
from tests.mpi.plans import write_small_plan
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize(
    ("fault", "elsewhere"),
    long_but(
        [
            (Fault("mixed", "rank", victim=1, launched=False), False),
            (Fault("mixed", "rank", victim=1, launched=False), True),
            (Fault("stages", "rank", victim=2, launched=True), True),
            (Fault("mixed", "guard", victim=1, launched=True), True),
            (Fault("mixed", "guard", victim=0, launched=False), True),
        ],
        0,
    ),
    ids=str,
)
def test_a_killed_rank_ends_the_job_and_the_training_goes_on(tmp_path: Path, fault: Fault, elsewhere: bool) -> None:
    assert list(check_fault(tmp_path, fault, elsewhere=elsewhere)) == []


@pytest.mark.long
def test_another_plan_goes_on_where_a_killed_one_stopped(tmp_path: Path) -> None:
    """Alone, then from a step that has nothing left to do; on ranks: `check_fault` goes on under another layout."""
    plan = write_small_plan(tmp_path, "mixed")
    job = Job(tmp_path, "train", plan, "--steps", 5000, "--json", "--checkpoint", "a", "--checkpoint-every", 3, ranks=2)
    job.wait_for_step(7)  # a save is under way then, and the one before is over
    job.signal(signal.SIGKILL, job.beats()[0].process.pid)
    assert job.wait().code == 6
    saved = max(int(path.name.removeprefix("step-")) for path in (tmp_path / "a").glob("step-????????"))
    expected = never_killed("mixed", saved + 5)
    other = write_small_plan(tmp_path, "alone")
    goal = ("--steps", saved + 5, "--json", "--resume", "--checkpoint", "a")
    ended = run_well(tmp_path, "train", other, *goal)
    found = losses_of(ended)
    assert sorted(found) == list(range(saved + 1, saved + 6))
    assert found == pytest.approx({step: expected[step] for step in found}, rel=1e-4)
    nothing_left = run_well(tmp_path, "train", other, *goal)
    (summary,) = nothing_left.documents
    assert (summary["steps"], summary["final_loss"], summary["error"]) == (saved + 5, None, None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("signum", "code", "launched"),
    long_but([(s, 128 + s, launched) for s in (signal.SIGINT, signal.SIGTERM) for launched in (False, True)], 1),
)
def test_an_interrupted_job_is_gone(tmp_path: Path, signum: signal.Signals, code: int, launched: bool) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    job = Job(
        tmp_path, "train", plan, "--steps", 5000, "--json", *["--launch"] * launched, ranks=None if launched else 2
    )
    job.wait_for_step(3)
    folder = job.run_folder()
    job.signal(signum)
    ended = job.wait()
    assert ended.code == code
    assert ended.seconds < 10
    told = [message for message in ended.messages if message.startswith("sbplan: ")]
    assert told[0] == f"sbplan: interrupted by {signum.name}"
    assert told[1:] == ([f"sbplan: see runs/{folder.name}"] if launched else [])
    # mpiexec announces on its own stdout that it passes a Ctrl-C on; with --launch that goes to stderr.
    lines = [line for line in ended.stdout.splitlines() if launched or not line.startswith("[mpiexec@")]
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))
    failure = find_failure(folder)
    assert (failure["rank"], failure["exit_code"]) == (-1, code)


@pytest.mark.parametrize(("what", "times"), long_but([("sbplan-guard", 3), ("sbplan-rank", 3), ("sbplan-rank", 1)], 2))
def test_an_interrupt_between_the_starts_of_two_ranks_is_not_lost(tmp_path: Path, what: str, times: int) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    for _ in range(times):
        job = Job(tmp_path, "train", plan, "--steps", 5000, "--json", "--launch")
        deadline_s = time.monotonic() + 30
        while what not in (name for _, name in job.processes()) and time.monotonic() < deadline_s:
            time.sleep(0.001)  # the job needs the core, too
        job.signal(signal.SIGINT)
        ended = job.wait()
        assert (ended.code, ended.stdout) == (130, "")
        assert ended.seconds < 10
        assert ended.messages[0] == "sbplan: interrupted by SIGINT"
        assert len(ended.messages) == 2


@pytest.mark.long
def test_two_jobs_in_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    doomed = Job(tmp_path, "train", plan, "--steps", 5000, "--json", "--checkpoint", "a", ranks=2)
    doomed.wait_for_step(2)
    other = Job(tmp_path, "train", plan, "--steps", 12, "--json", "--checkpoint", "b", ranks=2)
    other.wait_for_step(1)
    folders = doomed.run_folder(), other.run_folder()
    doomed.signal(signal.SIGKILL, doomed.beats()[1].process.pid)
    ended, killed = other.wait(), doomed.wait()
    assert (ended.code, ended.stderr, killed.code) == (0, "", 6)
    assert sorted(losses_of(ended)) == list(range(1, 13))
    shared = min(12, len(losses_of(killed)))
    assert list(losses_of(ended).values())[:shared] == list(losses_of(killed).values())[:shared]
    assert folders[0] != folders[1]
    assert [(folder / "failure.json").exists() for folder in folders] == [True, False]
    assert [(folder / "plan.json").exists() for folder in folders] == [False, True]


@pytest.mark.long
def test_a_job_that_is_killed_leaves_no_shared_memory(tmp_path: Path) -> None:
    """Segments of 2 MB would fill it, until jobs die of SIGBUS without a word."""
    shared = Path("/dev/shm")
    plan = write_small_plan(tmp_path, "mixed")
    before = set(shared.iterdir())
    job = Job(tmp_path, "train", plan, "--steps", 5000, "--json", ranks=2)
    job.wait_for_step(3)
    for beat in job.beats():
        job.signal(signal.SIGKILL, beat.process.pid)
    assert job.wait().code == 6
    left = {path for path in set(shared.iterdir()) - before if not is_mapped(path)}
    assert left == set()


def is_mapped(path: Path) -> bool:
    """Whether some living process, of another test, has it."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:  # it ended meanwhile
            continue
    return False


def test_train_beside_profile_is_refused(tmp_path: Path) -> None:
    """Two verbs in one MPI job would wait for each other."""
    plan = write_small_plan(tmp_path, "mixed")
    verbs = (("train", str(plan), "--steps", "2"), ("profile", "--out", "cal.json"))
    ended = started_apart(tmp_path, verbs)
    assert ended.returncode == 2
    assert "  - verb: 'train' on rank 0; 'profile' on rank 1" in ended.stderr


def started_apart(folder: Path, ranks: Sequence[Sequence[str]]) -> subprocess.CompletedProcess[str]:
    """One mpiexec that starts every rank with arguments of its own."""
    command = [str(find_mpiexec())]
    for number, arguments in enumerate(ranks):
        command += [":"] * (number > 0)
        command += ["-n", "1", "-env", "PYTHONPATH", str(ROOT), sys.executable, "-P", "-m", "experiments", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.long
def test_a_killed_watcher_is_replaced(tmp_path: Path) -> None:
    """A rank that is stopped then is found all the same, and what the other does is told."""
    plan = write_small_plan(tmp_path, "mixed")
    job = Job(tmp_path, "held", 1, 0, "train", plan, "--steps", 5000, "--json", ranks=2, module="tests.mpi.broken")
    job.wait_for_step(3)
    (watcher,) = [pid for pid, name in job.processes() if name == "sbplan-watcher"]
    job.signal(signal.SIGKILL, watcher)
    time.sleep(1.0)
    victim = job.beats()[1].process.pid
    job.signal(signal.SIGSTOP, victim)
    ended = job.wait()
    assert (ended.code, ended.seconds < 10) == (6, True)
    (told,) = ended.messages
    assert told.startswith(f"sbplan: rank 1 (pid {victim} on ")
    assert re.search(f"stopped by a signal for more than {STOP_S:g} s; rank 0 (waiting|running) in ", told)
