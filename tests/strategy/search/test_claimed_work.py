"""Claimed work: one process alone gets each piece of work, and none waits for ever for one that has ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from strategy.search import claimed_work
from strategy.search.claimed_work import ClaimedWork

NUMBERS = 2000


def _claim_all(known: ClaimedWork, connection: Connection) -> None:
    connection.send([number for number in range(NUMBERS) if known.claim(number)])


def _end_inside(known: ClaimedWork, connection: Connection) -> None:
    known.taken.get_lock().acquire()
    connection.send([])
    os.kill(os.getpid(), signal.SIGKILL)


def started(known: ClaimedWork, work: Callable[[ClaimedWork, Connection], None]) -> tuple[BaseProcess, Connection]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(known, theirs))
    process.start()
    return process, ours


def test_each_number_is_claimed_by_one_of_several_processes() -> None:
    known = ClaimedWork()
    others = [started(known, _claim_all) for _ in range(3)]
    mine = [number for number in range(NUMBERS) if known.claim(number)]
    every = sorted(mine + [number for _, connection in others for number in connection.recv()])
    for process, _ in others:
        process.join()
    assert every == list(range(NUMBERS))
    assert not known.claim(0)


def test_nobody_claims_what_is_beyond_what_can_be_told_apart() -> None:
    assert not ClaimedWork().claim(claimed_work.MOST)


def test_who_ended_inside_holds_up_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed_work, "PATIENCE_S", 0.05)
    known = ClaimedWork()
    process, connection = started(known, _end_inside)
    assert connection.recv() == []
    process.join()
    assert known.claim(7)
    assert not known.claim(7)
