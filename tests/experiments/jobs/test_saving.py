"""Saves of a training: slow ones, ones that fail, the last one of an interrupted job, and whose folder it is."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.mpi.disks import SLOW_S
from tests.mpi.faults import losses_of, never_killed
from tests.mpi.jobs import Job, run, run_well
from tests.mpi.plans import write_small_plan
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi


def saved_steps(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("step-").lstrip("0") for path in folder.glob("step-????????"))


@pytest.mark.long
def test_a_save_that_takes_longer_than_a_stall_is_none(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    goal = ("--steps", 3, "--checkpoint", "saved", "--checkpoint-every", 2, "--json")
    job = Job(tmp_path, "slow", SLOW_S, "train", plan, *goal, ranks=2, module="tests.mpi.disks")
    ended = job.wait()
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.seconds > 2 * SLOW_S
    assert saved_steps(tmp_path / "saved") == ["2", "3"]


@pytest.mark.long
def test_a_training_goes_on_while_its_state_is_written(tmp_path: Path) -> None:
    """What is written is the state at the end of its step, to the last bit, whatever the steps after that do."""
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--checkpoint", "saved", "--checkpoint-every", 3, "--json")
    job = Job(tmp_path, "held", "go", *start, "--steps", 5, ranks=2, module="tests.mpi.disks")
    job.wait_for_step(4)
    assert saved_steps(tmp_path / "saved") == []
    (tmp_path / "go").touch()
    ended = job.wait()
    assert (ended.code, ended.stderr) == (0, "")
    assert saved_steps(tmp_path / "saved") == ["3", "5"]
    shutil.rmtree(tmp_path / "saved" / "step-00000005")
    whole = {step: never_killed("mixed", 5)[step] for step in range(1, 6)}
    resumed = run_well(tmp_path, *start, "--steps", 5, "--resume", ranks=2)
    assert losses_of(ended) == whole
    assert losses_of(resumed) == {step: whole[step] for step in (4, 5)}


@pytest.mark.long
def test_an_interrupted_job_ends_the_save_under_way_and_saves_once_more(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", 3, "--keep", 2)
    job = Job(tmp_path, "held", "go", *start, "--steps", 5000, ranks=2, module="tests.mpi.disks")
    job.wait_for_step(4)
    job.signal(signal.SIGTERM)
    assert saved_steps(tmp_path / "saved") == []
    (tmp_path / "go").touch()
    ended = job.wait()
    last = max(losses_of(ended))
    assert ended.code == 143
    assert saved_steps(tmp_path / "saved") == [str((last - 1) // 3 * 3), str(last)]
    assert list((tmp_path / "saved").glob("*.tmp")) == []


@pytest.mark.parametrize(
    ("signum", "code", "launched"),
    long_but(
        [
            (signal.SIGINT, 130, False),
            (signal.SIGINT, 130, True),
            (signal.SIGTERM, 143, False),
            (signal.SIGTERM, 143, True),
        ],
        1,
    ),
)
def test_an_interrupted_job_saves_and_goes_on_later(
    tmp_path: Path, signum: signal.Signals, code: int, launched: bool
) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", 4000)
    job = Job(tmp_path, *start, "--steps", 5000, *["--launch"] * launched, ranks=None if launched else 2)
    job.wait_for_step(3)
    job.signal(signum)
    ended = job.wait()
    assert ended.code == code
    assert ended.seconds < 20
    done = max(losses_of(ended))
    assert saved_steps(tmp_path / "saved") == [str(done)]
    assert f"sbplan: interrupted by {signum.name}" in ended.messages
    assert f"sbplan: stopped after step {done}, which is saved in saved" in ended.messages
    resumed = run_well(tmp_path, *start, "--steps", done + 2, "--resume", ranks=2)
    whole = never_killed("mixed", done + 2)
    assert losses_of(resumed) == {step: whole[step] for step in (done + 1, done + 2)}


@pytest.mark.long
def test_a_last_save_that_has_begun_is_left_to_end(tmp_path: Path) -> None:
    """It takes longer than the grace, which is for its beginning, and than a stall."""
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", 4000, "--grace", 1)
    job = Job(tmp_path, "slow", SLOW_S, *start, "--steps", 5000, ranks=2, module="tests.mpi.disks")
    job.wait_for_step(3)
    job.signal(signal.SIGTERM)
    ended = job.wait()
    assert (ended.code, saved_steps(tmp_path / "saved")) == (143, [str(max(losses_of(ended)))])
    assert SLOW_S < ended.seconds < 20


@pytest.mark.long
def test_a_second_interrupt_does_not_wait_for_the_save(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", 4000)
    job = Job(tmp_path, "slow", 60, *start, "--steps", 5000, ranks=2, module="tests.mpi.disks")
    job.wait_for_step(3)
    job.signal(signal.SIGTERM)
    time.sleep(1.0)
    job.signal(signal.SIGTERM)
    ended = job.wait()
    assert (ended.code, saved_steps(tmp_path / "saved")) == (143, [])
    assert ended.seconds < 10


def test_a_full_disk_ends_no_training(tmp_path: Path) -> None:
    """The first save and the first try of the last one fail, on both ranks; nothing is lost."""
    plan = write_small_plan(tmp_path, "mixed")
    goal = ("--steps", 4, "--checkpoint", "saved", "--checkpoint-every", 3, "--json")
    ended = Job(tmp_path, "full", 2, "train", plan, *goal, ranks=2, module="tests.mpi.disks").wait()
    assert ended.code == 0
    why = "was not saved in saved: No space left on device; earlier ones are untouched"
    assert ended.messages == [
        f"sbplan: checkpoint of step 3 {why}; the training goes on, and saves next at step 4",
        f"sbplan: checkpoint of step 4 {why}; the next try is in 0.1 s",
    ]
    assert saved_steps(tmp_path / "saved") == ["4"]
    whole = never_killed("mixed", 4)
    assert losses_of(ended) == {step: whole[step] for step in range(1, 5)}


@pytest.mark.long
def test_what_cannot_be_saved_at_last_is_a_failure(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    goal = ("--steps", 2, "--checkpoint", "saved", "--json")
    ended = Job(tmp_path, "full", 100, "train", plan, *goal, ranks=2, module="tests.mpi.disks").wait()
    assert ended.code == 6
    told = "step 2 could not be saved in saved; free some space and train anew"
    assert sum(told in message for message in ended.messages) == 1
    assert sum("No space left on device" in message for message in ended.messages) == 3


@pytest.mark.long
def test_a_folder_that_cannot_be_written_to_is_told_before_the_first_step(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    (tmp_path / "file").touch()
    ended = run(tmp_path, "train", plan, "--steps", 2, "--checkpoint", "file/saved", "--json", ranks=2)
    assert (ended.code, ended.stdout) == (6, "")
    assert len(ended.messages) == 1
    assert "file/saved: no folder of checkpoints can be made: " in ended.messages[0]


@pytest.mark.long
def test_the_newest_are_kept(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    goal = ("--steps", 7, "--checkpoint", "saved", "--checkpoint-every", 2, "--json")
    run_well(tmp_path, "train", plan, *goal, "--keep", 2, ranks=2)
    assert saved_steps(tmp_path / "saved") == ["6", "7"]


@pytest.mark.long
def test_a_folder_of_checkpoints_has_one_training_at_a_time(tmp_path: Path) -> None:
    """The second is refused and harms nothing; the lock of one that was killed is no lock."""
    plan = write_small_plan(tmp_path, "mixed")
    start = ("train", plan, "--json", "--checkpoint", "saved", "--checkpoint-every", 2)
    first = Job(tmp_path, *start, "--steps", 5000, "--keep", 2, ranks=2)
    first.wait_for_step(5)
    owner = first.beats()[0].process.pid
    refused = run(tmp_path, *start, "--resume", "--steps", 5000, ranks=2)
    assert (refused.code, refused.stdout) == (2, "")
    hint = "wait for it, or choose another folder"
    assert refused.messages == [f"sbplan: saved: in use by the process with pid {owner}; {hint}"]
    first.signal(signal.SIGKILL, owner)
    ended = first.wait()
    assert ended.code == 6
    done = max(losses_of(ended))
    assert done > 5
    resumed = run_well(tmp_path, *start, "--resume", "--steps", done + 2, ranks=2)
    whole = never_killed("mixed", done + 2)
    assert all(loss == whole[step] for step, loss in losses_of(resumed).items())
    assert json.loads(resumed.stdout.splitlines()[-1])["steps"] == done + 2
