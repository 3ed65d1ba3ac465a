"""A rank that is killed, stopped or raises ends all ranks in time, and is named."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.mpi.jobs import Job
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi


def loop(folder: Path, how: str) -> Job:
    return Job(folder, how, ranks=3, module="tests.mpi.exchange_loop")


@pytest.mark.parametrize(
    ("signum", "reason", "limit_s"),
    long_but(
        [(signal.SIGKILL, "killed by SIGKILL", 3.0), (signal.SIGSTOP, "stopped by a signal for more than 1 s", 6.0)], 0
    ),
)
def test_a_rank_that_is_hit_is_named(tmp_path: Path, signum: signal.Signals, reason: str, limit_s: float) -> None:
    job = loop(tmp_path, "guarded")
    job.wait_for_step(5)
    victim = next(beat for beat in job.beats() if beat.rank == 1)
    job.signal(signum, victim.process.pid)
    ended = job.wait(timeout_s=30)
    assert ended.code != 0
    assert "rank 1" in ended.stderr
    assert reason in ended.stderr
    assert ended.seconds < limit_s


def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    ended = loop(tmp_path, "raising").wait(timeout_s=30)
    assert ended.code != 0
    assert "rank 1" in ended.stderr
    assert "ValueError: the loss is no number" in ended.stderr


def test_a_stopped_rank_is_named_without_a_guard_too(tmp_path: Path) -> None:
    """The others wait two seconds for its answer."""
    job = loop(tmp_path, "plain")
    job.wait_for_step(5)
    ranks = sorted(pid for pid, name in job.processes() if name.startswith("python"))
    assert len(ranks) == 3
    job.signal(signal.SIGSTOP, ranks[1])
    ended = job.wait(timeout_s=30)
    assert ended.code != 0
    assert "waited 2 s for" in ended.stderr
    assert "is stopped, or cannot be reached" in ended.stderr
    assert ended.seconds < 8
