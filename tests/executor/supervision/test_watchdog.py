from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor.supervision.failure import read_failure, record_failure, write_actors
from executor.supervision.heartbeat import (
    Heartbeat,
    Process,
    RankState,
    heartbeat_path,
    identify,
    process_state,
    read_heartbeat,
    read_heartbeats,
)
from executor.supervision.watchdog import Limits, kill_ranks, watch
from strategy.program.program import ActKind, Actor, Program

JOB = 77


def start_heartbeat(folder: Path, rank: int, guard: Process, process: Process, job: int = JOB) -> Heartbeat:
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    heartbeat.start(job, guard)
    heartbeat.enter(process)
    return heartbeat


@contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that stand for ranks and guards."""
    found = [subprocess.Popen(["sleep", "60"]) for _ in range(count)]
    try:
        yield found
    finally:
        for process in found:
            process.kill()
            process.wait()


def beat_on(heartbeat: Heartbeat, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.02):
        heartbeat.beat(0, number)
        number += 1


def test_a_beat_reads_as_it_was_written(tmp_path: Path) -> None:
    me = identify(os.getpid())
    heartbeat = start_heartbeat(tmp_path, 3, me, Process(5, 6))
    path = heartbeat_path(tmp_path, 3)
    first = read_heartbeat(path)
    assert first is not None
    assert (first.rank, first.job, first.guard, first.process) == (3, JOB, me, Process(5, 6))
    assert (first.state, first.actor) == (RankState.STARTING, -1)
    before_ns = time.monotonic_ns()
    heartbeat.beat(4, 1 << 40)
    beat = read_heartbeat(path)
    assert beat is not None
    assert (beat.state, beat.actor, beat.number) == (RankState.RUNNING, 4, 1 << 40)
    assert before_ns <= beat.time_ns <= time.monotonic_ns()
    heartbeat.finish()
    last = read_heartbeat(path)
    assert last is not None
    assert (last.state, last.number, last.time_ns) == (RankState.DONE, 1 << 40, beat.time_ns)


def test_a_second_writer_of_the_same_file_goes_on_with_it(tmp_path: Path) -> None:
    start_heartbeat(tmp_path, 0, Process(1, 2), Process(3, 4))
    Heartbeat(heartbeat_path(tmp_path, 0)).beat(1, 2)
    beat = read_heartbeat(heartbeat_path(tmp_path, 0))
    assert beat is not None
    assert (beat.job, beat.guard, beat.actor) == (JOB, Process(1, 2), 1)


def test_what_is_no_heartbeat_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "heartbeat.0").write_bytes(b"short")
    (tmp_path / "heartbeat.1").write_bytes(bytes(1000))
    (tmp_path / "heartbeat.x").touch()
    start_heartbeat(tmp_path, 10, Process(1, 1), Process(1, 1))
    start_heartbeat(tmp_path, 2, Process(1, 1), Process(1, 1))
    start_heartbeat(tmp_path, 3, Process(1, 1), Process(1, 1), job=8)
    assert read_heartbeat(tmp_path / "heartbeat.5") is None
    assert [beat.rank for beat in read_heartbeats(tmp_path)] == [2, 3, 10]
    assert [beat.rank for beat in read_heartbeats(tmp_path, JOB)] == [2, 10]


def test_a_beat_is_read_whole_while_another_is_written(tmp_path: Path) -> None:
    path, me, enough = heartbeat_path(tmp_path, 0), identify(os.getpid()), 10**6
    heartbeat = start_heartbeat(tmp_path, 0, me, me)
    heartbeat.beat(7, enough)
    writer = os.fork()
    if writer == 0:
        deadline_s = time.monotonic() + 1.0
        while time.monotonic() < deadline_s:
            for number in range(enough, enough + 100):
                heartbeat.beat(7, number)
        os._exit(0)
    seen = set()
    while os.waitpid(writer, os.WNOHANG) == (0, 0):
        beat = read_heartbeat(path)
        assert beat is not None
        seen.add((beat.actor, beat.number >= enough, beat.time_ns > 0, beat.state))
    assert seen == {(7, True, True, RankState.RUNNING)}


def test_a_beat_is_cheap(tmp_path: Path) -> None:
    heartbeat = Heartbeat(heartbeat_path(tmp_path, 0))
    fastest_s = float("inf")
    for _ in range(20):
        begin_s = time.perf_counter()
        for number in range(1000):
            heartbeat.beat(1, number)
        fastest_s = min(fastest_s, (time.perf_counter() - begin_s) / 1000)
    assert fastest_s < 5e-6


def test_a_pid_used_again_is_another_process() -> None:
    with sleepers(1) as (process,):
        found = identify(process.pid)
        assert process_state(found) in ("S", "R", "D")
        assert process_state(Process(found.pid, found.start_ticks - 1)) is None
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(found) == "T")
        process.kill()
        wait_until(lambda: process_state(found) is None)


def test_the_first_cause_stays(tmp_path: Path) -> None:
    """Ranks that fail together: one of them writes the cause, whole."""
    start_heartbeat(tmp_path, 0, Process(1, 1), Process(1, 1))
    children = []
    for rank in range(8):
        child = os.fork()
        if child == 0:
            os._exit(int(record_failure(tmp_path, rank, f"reason {rank}", exit_code=2)))
        children.append(child)
    wrote = [rank for rank, child in enumerate(children) if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
    failure = read_failure(tmp_path)
    assert failure is not None
    assert wrote == [failure.rank]
    assert (failure.reason, failure.exit_code) == (f"reason {failure.rank}", 2)
    assert failure.message() == failure.reason
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failure.json", "heartbeat.0"]


def test_of_many_who_make_sure_one_tells(tmp_path: Path) -> None:
    assert record_failure(tmp_path, 0, "the disk is full", exit_code=2)
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
    assert record_failure(tmp_path, 1, "killed by SIGKILL")
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


def test_only_the_processes_that_it_was_told_of_are_killed(tmp_path: Path) -> None:
    with sleepers(3) as (mine, reused, guard):
        start_heartbeat(tmp_path, 0, identify(guard.pid), identify(mine.pid))
        older = Process(reused.pid, identify(reused.pid).start_ticks - 1)
        start_heartbeat(tmp_path, 1, identify(guard.pid), older)
        kill_ranks(read_heartbeats(tmp_path))
        assert mine.wait(5) == -signal.SIGKILL
        assert reused.poll() is None
        assert guard.poll() is None
        kill_ranks(read_heartbeats(tmp_path), guards=True)
        assert guard.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("fault", ["stopped", "stalled", "guard killed", "rank gone", "well"])
def test_the_watcher_blames_the_right_rank_and_ends_the_rest(tmp_path: Path, fault: str) -> None:
    stop = [threading.Event(), threading.Event()]
    with sleepers(4) as (guard0, guard1, rank0, rank1):
        beats = [
            start_heartbeat(tmp_path, 0, identify(guard0.pid), identify(rank0.pid)),
            start_heartbeat(tmp_path, 1, identify(guard1.pid), identify(rank1.pid)),
        ]
        threads = [threading.Thread(target=beat_on, args=args) for args in zip(beats, stop, strict=True)]
        for thread in threads:
            thread.start()
        limits = Limits(stall_s=0.5 if fault == "stalled" else 60.0, stop_s=0.3)
        watcher = threading.Thread(target=watch, args=(tmp_path, JOB, 2, limits), kwargs={"quiet": True})
        watcher.start()
        time.sleep(0.3)
        assert read_failure(tmp_path) is None
        if fault == "stopped":
            rank1.send_signal(signal.SIGSTOP)
        elif fault == "stalled":
            stop[1].set()
        elif fault == "guard killed":
            guard1.kill()
        elif fault == "rank gone":
            rank1.kill()
        else:
            for heartbeat, event, thread in zip(beats, stop, threads, strict=True):
                event.set()
                thread.join()
                heartbeat.finish()
            for process in (guard0, guard1, rank0, rank1):
                process.kill()
        watcher.join(15)
        assert not watcher.is_alive()
        for event, thread in zip(stop, threads, strict=True):
            event.set()
            thread.join()
        failure = read_failure(tmp_path)
        if fault == "well":
            assert failure is None
            return
        assert failure is not None
        words = {
            "stopped": "stopped by a signal",
            "stalled": "no progress",
            "guard killed": "process was killed",
            "rank gone": "guard is silent",
        }
        assert failure.rank == 1
        assert words[fault] in failure.reason
        assert (failure.actor, failure.exit_code) == ("actor 0", 6)
        assert [process.wait(5) for process in (guard0, guard1, rank0, rank1)] == [-signal.SIGKILL] * 4


def test_a_watcher_whose_job_is_gone_ends(tmp_path: Path) -> None:
    """The watched processes end before the watcher first looks."""
    with sleepers(1) as (process,):
        guard = identify(process.pid)
    start_heartbeat(tmp_path, 0, guard, guard)
    code = (
        "import sys; from pathlib import Path; from executor.supervision.watchdog import Limits, watch;"
        f"watch(Path(sys.argv[1]), {JOB}, 1, Limits(), quiet=False)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.count("process was killed") == 1


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
