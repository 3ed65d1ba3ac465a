"""Work beside: found in order, with its errors, by processes that end with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from strategy.base.beside import be_fork, beside, spare_processors, start_fork
from strategy.base.errors import InfeasibleError


def test_what_is_found_comes_in_order_with_its_errors() -> None:
    """Whoever does it: an error is as it was raised, with all that it says."""
    first, second, third = beside([lambda: 1, _fail, lambda: "three"])

    assert (first, third) == (1, "three")
    assert isinstance(second, InfeasibleError)
    assert (str(second), second.smallest_limit) == ("infeasible: too little; add some", 7)


def _fail() -> int:
    raise InfeasibleError("too little", smallest_limit=7, hint="add some")


def test_work_is_done_by_processes_of_its_own() -> None:
    """The first by this one, as many others as there are processors by others; none of them is left."""
    pids = beside([os.getpid] * 3)

    assert pids[0] == os.getpid()
    assert len(set(pids)) == 1 + min(spare_processors(), 2)
    assert not multiprocessing.active_children()


def test_what_ends_without_a_word_is_done_again_here() -> None:
    """A process that is killed has found nothing; what is no error of ours is raised by whoever asked."""
    here = os.getpid()

    assert beside([lambda: 0, partial(_die_elsewhere, here)]) == [0, here]
    with pytest.raises(ZeroDivisionError):
        beside([lambda: 0, lambda: 1 // 0])


def _die_elsewhere(here: int) -> int:
    if os.getpid() != here:
        os._exit(3)
    return here


def test_an_interruption_ends_all() -> None:
    """What others were at is not waited for."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        beside([interrupted, partial(time.sleep, 60)])

    assert not multiprocessing.active_children()
    assert time.monotonic() - start < 30


def test_what_is_ended_at_once_says_nothing(tmp_path: Path) -> None:
    """A fork has our handlers until it has its own; a signal that comes before waits for these."""
    said = tmp_path / "said"
    before = signal.signal(signal.SIGTERM, lambda *_: said.touch())
    try:
        process = multiprocessing.get_context("fork").Process(target=_late)
        start_fork(process)
        process.terminate()
        process.join(30)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert process.exitcode == -signal.SIGTERM
    assert not said.exists()
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _late() -> None:
    time.sleep(0.2)
    be_fork()
    time.sleep(60)
