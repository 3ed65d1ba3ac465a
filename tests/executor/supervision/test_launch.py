from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from executor.supervision.environment import find_mpiexec
from executor.supervision.failure import record_or_say
from executor.supervision.heartbeat import Beat, process_state, read_heartbeats
from executor.supervision.launch import launch
from strategy.base.errors import InputError
from tests.support.long_parameters import long_but

ROOT = Path(__file__).resolve().parents[3]

# What one rank does: ACTS acts that need every rank, and on rank 1, at act 30, what argv says.
RANK = r"""
import json, os, sys, threading, time
from pathlib import Path
from executor.supervision.rank import run_rank
from executor.supervision.watchdog import Limits

def say(line):
    # In one write, so that the launcher cannot put another rank's words into the line.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()

def main():
    how = sys.argv[1]
    if how == "input":
        from strategy.base.errors import InputError
        raise InputError("no such plan", where="plan.json")
    if how == "early" and os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
        raise ValueError("before MPI")
    (Path.cwd() / f"imports.{os.environ.get('PMI_RANK')}").touch()
    if how == f"late {os.environ.get('PMI_RANK')}":
        time.sleep(60)
    import numpy as np
    from mpi4py import MPI
    from executor.runtime.transport.mpi import open_world
    from executor.supervision.heartbeat import Heartbeat, heartbeat_path
    from executor.supervision.environment import run_folder
    from executor.supervision.failure import write_actors
    from strategy.base.errors import RunError
    from strategy.program.program import ActKind, Actor, Program
    world = open_world()
    rank = world.Get_rank()
    actors = tuple(Actor(f"layer.{i}.mlp.fc1", 0, ActKind.COMPUTE, acts_per_step=10) for i in range(2))
    write_actors(run_folder(), Program(1, (), actors, ()))
    heartbeat = Heartbeat(heartbeat_path(run_folder(), rank))
    say(f"rank {rank} says hello")
    try:
        for number in range(int(os.environ.get("ACTS", "60"))):
            heartbeat.beat(1, number)
            world.Allreduce(MPI.IN_PLACE, np.ones(1))
            time.sleep(0.005)
            if rank == 0 and number % 10 == 0:
                say(json.dumps({"step": number // 10 + 1}))
            if rank == 1 and number == 30:
                if how == "raise":
                    raise ValueError("boom")
                if how == "run error":
                    raise RunError("the disk is full")
                if how == "thread":
                    threading.Thread(target=lambda: 1 / 0).start()
                if how == "exit":
                    sys.exit(4)
    except KeyboardInterrupt:
        (run_folder() / f"saved.{rank}").touch()
        raise
    if rank == 0:
        say(json.dumps({"threads": os.environ["OPENBLAS_NUM_THREADS"], "ranks": world.Get_size()}))
    return 0

if __name__ == "__main__":
    run_rank(main, limits=Limits(stop_s=1.0))
"""

# What somebody who starts Open MPI's own mpiexec on a small machine has to say; MPICH does not care.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

LAUNCH = """
import sys
from pathlib import Path
from executor.supervision.launch import launch
sys.exit(launch(sys.argv[3:], int(sys.argv[2]), folder=Path(sys.argv[1])))
"""


needs_mpi = pytest.mark.mpi


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    def strange_lines(self) -> list[str]:
        """Lines of stdout that are not JSON documents."""
        return [line for line in self.stdout.splitlines() if not line.startswith("{")]


class Job:
    """A job under way, started by `launch` or by mpiexec itself."""

    def __init__(self, folder: Path, how: str, *, ranks: int, launched: bool, acts: int = 60) -> None:
        script = folder / "rank.py"
        script.write_text(RANK)
        self.run = folder / "run"
        command = [sys.executable, str(script), how]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ACTS": str(acts)}
        if launched:
            command = [sys.executable, "-c", LAUNCH, str(self.run), str(ranks), *command]
        else:
            command = [str(find_mpiexec()), "-n", str(ranks), *command]
            environment |= {"SBPLAN_RUN_FOLDER": str(self.run), **OPEN_MPI}
        self.ranks = ranks
        self._begin_s = time.monotonic()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
        )

    def wait_for_acts(self) -> Sequence[Beat]:
        """Until every rank is well under way."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            beats = read_heartbeats(self.run) if self.run.exists() else ()
            if len(beats) == self.ranks and all(beat.number > 5 for beat in beats):
                self._begin_s = time.monotonic()
                return beats
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the job does not start: {self.process.communicate()}")

    def wait(self) -> Ended:
        """Until the end; seconds count from the start, or from `wait_for_acts`."""
        try:
            stdout, stderr = self.process.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return Ended(self.process.returncode, stdout, stderr, time.monotonic() - self._begin_s)

    def failure(self) -> dict[str, Any]:
        """The recorded cause."""
        document: dict[str, Any] = json.loads((self.run / "failure.json").read_text())
        return document


def survivors(beats: Sequence[Beat]) -> list[int]:
    """Ranks of which a process is left, a moment after the end."""
    deadline_s = time.monotonic() + 3
    while time.monotonic() < deadline_s and any(map(_lives, beats)):
        time.sleep(0.02)
    return [beat.rank for beat in beats if _lives(beat)]


def _lives(beat: Beat) -> bool:
    return process_state(beat.guard) is not None or process_state(beat.process) is not None


def test_what_cannot_be_launched_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="at least 1"):
        launch(["true"], 0, folder=tmp_path)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    monkeypatch.setenv("MPI_LOCALRANKID", "0")
    with pytest.raises(InputError, match="already under mpiexec"):
        launch(["true"], 2, folder=tmp_path)


@needs_mpi
def test_a_job_that_ends_well_says_json_and_nothing_else(tmp_path: Path) -> None:
    job = Job(tmp_path, "well", ranks=3, launched=True)
    beats = job.wait_for_acts()
    ended = job.wait()
    assert ended.code == 0
    assert ended.strange_lines() == []
    documents = [json.loads(line) for line in ended.stdout.splitlines()]
    assert documents == [*({"step": step} for step in range(1, 7)), {"threads": "1", "ranks": 3}]
    assert sorted(ended.stderr.splitlines()) == [f"rank {rank} says hello" for rank in range(3)]
    assert not (job.run / "failure.json").exists()
    assert survivors(beats) == []


RAISED = [
    ("raise", 70, "ValueError: boom", 1),
    ("early", 70, "ValueError: before MPI", 1),
    ("thread", 70, "ZeroDivisionError: division by zero", 1),
    ("run error", 6, "the disk is full", 0),
    ("input", 2, "plan.json: no such plan", 0),
]


@needs_mpi
@pytest.mark.parametrize(
    ("launched", "how", "code", "reason", "tracebacks"),
    long_but([(launched, *one) for one in RAISED for launched in (False, True)], 0, 9),
)
def test_a_rank_that_raises_ends_the_job_and_tells_once(
    tmp_path: Path, launched: bool, how: str, code: int, reason: str, tracebacks: int
) -> None:
    job = Job(tmp_path, how, ranks=3, launched=launched, acts=100_000)
    ended = job.wait()
    assert ended.code == code
    assert ended.seconds < 10
    assert ended.stderr.count("Traceback") == tracebacks
    # Open MPI ends what it says itself on stderr with a NUL.
    told_lines = [line for line in ended.stderr.replace("\0", "").splitlines() if line.startswith("sbplan:")]
    node, failure = os.uname().nodename, job.failure()
    place = " in layer.1.mlp.fc1 (compute), step 4" if how in ("raise", "run error", "thread") else ""
    blamed = "" if code == 2 else f"rank 1 (pid {failure['pid']} on {node}) failed{place}: "
    assert told_lines == [f"sbplan: {blamed}{reason}"]
    assert failure["exit_code"] == code
    assert survivors(read_heartbeats(job.run)) == []


def kill_one(folder: Path, what: str, *, launched: bool, victim: int, ranks: int = 3) -> list[str]:
    """Kill one rank, its guard, or stop it, in mid-run; everything that then was not as it must be."""
    job = Job(folder, "well", ranks=ranks, launched=launched, acts=100_000)
    beats = job.wait_for_acts()
    target = beats[victim].guard if what == "guard" else beats[victim].process
    os.kill(target.pid, signal.SIGSTOP if what == "stop" else signal.SIGKILL)
    ended = job.wait()
    wrong = []
    if ended.seconds > 10:
        wrong.append(f"took {ended.seconds:.1f} s")
    if left := survivors(beats):
        wrong.append(f"left {left}")
    failure = job.failure()
    if (failure["rank"], failure["pid"]) != (victim, beats[victim].process.pid):
        wrong.append(f"blamed {failure['rank']} for {victim}: {failure['reason']}")
    if failure["actor"] != "layer.1.mlp.fc1 (compute)" or failure["step"] < 1 or len(failure["ranks"]) != ranks:
        wrong.append(f"placed it in {failure['actor']}, step {failure['step']}")
    # MPICH prints its banner on stdout when the process that it started itself is killed: no rank can help that.
    if launched or what != "guard":
        said = [line for line in ended.strange_lines() if "says hello" not in line]
        wrong += [f"said {said}"] if said or (launched and ended.strange_lines()) else []
        wrong += [f"code {ended.code}"] if ended.code != 6 else []
        if launched:
            heard = [line for line in ended.stderr.splitlines() if "says hello" not in line]
            wrong += [f"told also {heard[:-1]}"] if len(heard) != 1 else []
        told = ended.stderr.count("sbplan: rank")
        wrong += [f"told {told} times"] if told != 1 else []
    return wrong


KILLED = [("rank", 0), ("rank", 2), ("guard", 1), ("stop", 1)]


@needs_mpi
@pytest.mark.parametrize(
    ("what", "victim", "launched"),
    long_but([(*one, launched) for one in KILLED for launched in (False, True)], 0, 4),
)
def test_a_rank_killed_or_stopped_is_named_and_the_job_ends(
    tmp_path: Path, what: str, victim: int, launched: bool
) -> None:
    assert kill_one(tmp_path, what, launched=launched, victim=victim) == []


@pytest.mark.long
@needs_mpi
def test_a_cause_is_told_once_if_the_one_who_recorded_it_does_not_live_to(tmp_path: Path) -> None:
    """On a loaded machine, the guard of a dead rank may be ended by an abort between the two."""
    job = Job(tmp_path, "well", ranks=3, launched=False, acts=100_000)
    beats = job.wait_for_acts()
    assert record_or_say(job.run, 1, "its end was seen", job=beats[1].job)
    ended = job.wait()
    assert (ended.code, ended.stderr.count("sbplan: rank 1")) == (6, 1), ended
    assert [line for line in ended.strange_lines() if "says hello" not in line] == []
    assert survivors(beats) == []


@needs_mpi
@pytest.mark.parametrize(("signum", "saved"), [(signal.SIGINT, 2), (signal.SIGTERM, 0)])
def test_an_interrupt_reaches_the_ranks(tmp_path: Path, signum: signal.Signals, saved: int) -> None:
    job = Job(tmp_path, "well", ranks=2, launched=True, acts=100_000)
    beats = job.wait_for_acts()
    job.process.send_signal(signum)
    ended = job.wait()
    assert ended.code == 128 + signum
    assert ended.seconds < 20
    assert ended.strange_lines() == []
    assert ended.stderr.count(f"sbplan: interrupted by {signum.name}") == 1
    assert "Traceback" not in ended.stderr
    assert len(list(job.run.glob("saved.*"))) <= saved
    assert bool(list(job.run.glob("saved.*"))) == bool(saved)
    assert survivors(beats) == []


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize("late", long_but([0, 1], 1))
def test_an_interrupt_while_one_rank_waits_in_mpi_init_for_another(tmp_path: Path, late: int) -> None:
    """The one that waits in C hears nothing; the other has no MPI by which to end it."""
    job = Job(tmp_path, f"late {late}", ranks=2, launched=True)
    deadline_s = time.monotonic() + 30
    while len(list(tmp_path.glob("imports.*"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    time.sleep(2.0)  # to import MPI
    beats = read_heartbeats(job.run)
    begin_s = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    ended = job.wait()
    assert (ended.code, ended.stdout) == (130, ""), ended
    assert time.monotonic() - begin_s < 10
    assert ended.stderr.splitlines() == ["sbplan: interrupted by SIGINT"]
    assert survivors(beats) == []


@needs_mpi
def test_killing_the_launcher_leaves_nothing_behind(tmp_path: Path) -> None:
    job = Job(tmp_path, "well", ranks=2, launched=True, acts=100_000)
    beats = job.wait_for_acts()
    job.process.kill()
    job.wait()
    assert survivors(beats) == []


def main() -> int:
    """Kills at length: `python -m tests.executor.supervision.test_launch --cases 20 --what rank`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--what", choices=["rank", "guard", "stop"], default="rank")
    parser.add_argument("--plain", action="store_true", help="start mpiexec directly, not through launch")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    begin_s = time.monotonic()
    failures = 0
    for _ in range(arguments.cases):
        ranks = draw.randint(2, 4)
        with tempfile.TemporaryDirectory() as name:
            wrong = kill_one(
                Path(name), arguments.what, launched=not arguments.plain, victim=draw.randrange(ranks), ranks=ranks
            )
        failures += bool(wrong)
        if wrong:
            print("; ".join(wrong), file=sys.stderr)
    seconds = round(time.monotonic() - begin_s, 1)
    print(json.dumps({"cases": arguments.cases, "failures": failures, "what": arguments.what, "seconds": seconds}))
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
