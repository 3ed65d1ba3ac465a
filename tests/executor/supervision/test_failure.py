"""The first cause of a job's end: written down once, told once, with where everybody was."""

from __future__ import annotations

import errno
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from executor.supervision.failure import read_failure, record_or_say, write_actors
from executor.supervision.heartbeat import (
    Process,
)
from strategy.program.program import ActKind, Actor, Program
from tests.executor.supervision.test_watchdog import start_heartbeat


def test_the_first_cause_stays(tmp_path: Path) -> None:
    """Ranks that fail together: one of them writes the cause, whole."""
    start_heartbeat(tmp_path, 0, Process(1, 1), Process(1, 1))
    children = []
    for rank in range(8):
        child = os.fork()
        if child == 0:
            os._exit(int(record_or_say(tmp_path, rank, f"reason {rank}", exit_code=2)))
        children.append(child)
    wrote = [rank for rank, child in enumerate(children) if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    failure = read_failure(tmp_path)
    assert failure is not None
    assert wrote == [failure.rank]
    assert (failure.reason, failure.exit_code) == (f"reason {failure.rank}", 2)
    assert failure.message() == failure.reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failure.json", "heartbeat.0"]


def test_without_hard_links_the_first_cause_stays_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert [record_or_say(tmp_path, 0, f"reason {number}") for number in range(2)] == [True, False]
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.reason == "reason 0"
    assert [path.name for path in tmp_path.iterdir()] == ["failure.json"]


def test_of_many_who_make_sure_one_tells(tmp_path: Path) -> None:
    assert record_or_say(tmp_path, 0, "the disk is full", exit_code=2)
    code = (
        "import sys, pathlib; from executor.supervision.failure import ensure_told; "
        "ensure_told(pathlib.Path(sys.argv[1]))"
    )
    argv = [sys.executable, "-c", code, str(tmp_path)]
    tellers = [subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [teller.communicate(timeout=20)[1] for teller in tellers]
    assert sorted(said) == ["", "", "", "sbplan: the disk is full\n"]


def test_what_is_said_has_left_the_pipe_before_one_goes_on() -> None:
    code = "import sys; from executor.supervision.failure import await_relay; sys.stderr.write('said'); await_relay()"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert select.select([process.stderr], [], [], 20)[0]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.4)
        assert process.stderr.read(4) == "said"
        assert process.wait(20) == 0


def test_a_failure_names_actor_step_and_everybody(tmp_path: Path) -> None:
    actors = (
        Actor("tokens", 0, ActKind.LOAD),
        Actor("layer.1.mlp.fc1", 1, ActKind.COMPUTE, acts_per_step=4),
    )
    write_actors(tmp_path, Program(2, (), actors, ()))
    start_heartbeat(tmp_path, 0, Process(1, 1), Process(50, 1)).beat(0, 5)
    start_heartbeat(tmp_path, 1, Process(1, 1), Process(51, 1)).beat(1, 23)
    assert record_or_say(tmp_path, 1, "killed by SIGKILL")
    document = json.loads((tmp_path / "failure.json").read_text())
    assert (document["rank"], document["pid"]) == (1, 51)
    assert (document["actor"], document["step"]) == ("layer.1.mlp.fc1 (compute)", 6)
    assert [(last["rank"], last["actor"], last["act"]) for last in document["ranks"]] == [
        (0, "tokens (load)", 5),
        (1, "layer.1.mlp.fc1 (compute)", 23),
    ]
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.message().endswith("failed in layer.1.mlp.fc1 (compute), step 6: killed by SIGKILL")
