from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from executor.supervision import failure as failure_module
from executor.supervision import watchdog
from executor.supervision.failure import read_failure, write_actors
from executor.supervision.heartbeat import (
    Beat,
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
from tests.support.long_parameters import long_but

JOB = 77
GRACE_S = 0.3


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands for guards does not end by itself: every watcher here waits three graces for it."""
    monkeypatch.setattr(watchdog, "_GRACE_S", GRACE_S)


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


def test_in_a_full_folder_the_watcher_says_the_cause_once_and_ends_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with sleepers(2) as (guard, rank):
        start_heartbeat(tmp_path, 0, identify(guard.pid), identify(rank.pid)).beat(3, 1)
        monkeypatch.setattr(Path, "write_text", full)
        watcher = threading.Thread(target=watch, args=(tmp_path, JOB, 1, Limits(stop_s=0.3)), kwargs={"quiet": False})
        watcher.start()
        rank.send_signal(signal.SIGSTOP)
        watcher.join(15)
        assert not watcher.is_alive()
        assert [process.wait(5) for process in (guard, rank)] == [-signal.SIGKILL] * 2
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith(f"sbplan: rank 0 (pid {rank.pid} on ")
    assert "failed in actor 3, step 2: stopped by a signal for more than 0.3 s" in told


@pytest.mark.parametrize("first", long_but([0, 1], 0))
def test_a_stalled_rank_is_told_with_what_it_waits_for_and_where_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Both are quiet for as long: the one inside an act is to blame, whichever beat first; it is one verdict."""
    monkeypatch.setattr(failure_module, "_LONG_S", 0.3)
    actors = (Actor("fc1>all_reduce", 0, ActKind.ALL_REDUCE), Actor("fc2", 1, ActKind.COMPUTE))
    write_actors(tmp_path, Program(2, (), actors, ()))
    with sleepers(4) as (guard0, guard1, rank0, rank1):
        beats = [
            start_heartbeat(tmp_path, 0, identify(guard0.pid), identify(rank0.pid)),
            start_heartbeat(tmp_path, 1, identify(guard1.pid), identify(rank1.pid)),
        ]
        for rank in (first, 1 - first):
            beats[rank].beat(rank, 6 + rank)
        beats[0].wait("an exchange of ranks (0, 1) (rendezvous 4)")
        watch(tmp_path, JOB, 2, Limits(stall_s=0.6), quiet=True)
    failure = read_failure(tmp_path)
    assert failure is not None
    told = failure.message()
    assert f"rank 1 (pid {rank1.pid} on " in told
    assert "failed in fc2 (compute), step 8: no progress for more than 0.6 s; rank 0 waiting in fc1>all_reduce" in told
    assert told.endswith("(an exchange of ranks (0, 1) (rendezvous 4))")


def test_where_all_wait_the_one_that_waits_longest_is_told_with_what_it_waits_for(tmp_path: Path) -> None:
    """A message is lost."""
    with sleepers(4) as (guard0, guard1, rank0, rank1):
        for rank, (guard, process) in enumerate(((guard0, rank0), (guard1, rank1))):
            heartbeat = start_heartbeat(tmp_path, rank, identify(guard.pid), identify(process.pid))
            heartbeat.beat(0, rank)
            heartbeat.wait(f"the message from rank {1 - rank}")
        watch(tmp_path, JOB, 2, Limits(stall_s=0.5), quiet=True)
    failure = read_failure(tmp_path)
    assert failure is not None
    assert (failure.rank, failure.reason) == (0, "no progress for more than 0.5 s: the message from rank 1")


def test_a_save_has_a_limit_of_its_own(tmp_path: Path) -> None:
    with sleepers(2) as (guard, process):
        heartbeat = start_heartbeat(tmp_path, 0, identify(guard.pid), identify(process.pid))
        heartbeat.beat(0, 0)
        limits = Limits(stall_s=0.3, save_s=0.8)
        watcher = threading.Thread(target=watch, args=(tmp_path, JOB, 1, limits), kwargs={"quiet": True})
        begin_s = time.monotonic()
        with heartbeat.saving():
            watcher.start()
            watcher.join(15)
        assert time.monotonic() - begin_s > 0.8
    failure = read_failure(tmp_path)
    assert failure is not None
    assert failure.reason == "a save is not through after 0.8 s"


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


@pytest.mark.parametrize("fault", long_but(["stopped", "stalled", "guard killed", "rank gone", "well"], 0, 1, 3, 4))
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


def test_a_rank_that_ends_well_while_it_is_looked_at_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last word is written after the beats are read, and its process is gone before it is looked for."""
    with sleepers(1) as (guard,):
        heartbeat = start_heartbeat(tmp_path, 0, identify(guard.pid), identify(guard.pid))
        heartbeat.beat(0, 0)

        def read_then_end(folder: Path, job: int | None = None) -> Sequence[Beat]:
            beats = read_heartbeats(folder, job)
            heartbeat.finish()
            guard.kill()
            guard.wait()
            return beats

        monkeypatch.setattr("executor.supervision.watchdog.read_heartbeats", read_then_end)
        watch(tmp_path, JOB, 1, Limits(), quiet=True)
    assert read_failure(tmp_path) is None


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
